//! Every message, field, number, type, enum value and call is listed in `tests/wire.txt`. The
//! file is never rewritten automatically: clients depend on each line, so lines may be added but
//! not changed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

#[test]
fn wire_format_does_not_change() {
    let expected: Vec<&str> = include_str!("wire.txt").lines().collect();
    let found = lines();
    for (at, line) in found.iter().enumerate() {
        let wanted = expected.get(at).copied().unwrap_or("nothing more");
        assert_eq!(line, wanted, "line {} of tests/wire.txt", at + 1);
    }
    assert_eq!(found.len(), expected.len(), "tests/wire.txt has lines that proto/ has not");
}

/// The contents of the descriptors, one line for each item.
fn lines() -> Vec<String> {
    let described = FileDescriptorSet::decode(quorate_proto::DESCRIPTORS).unwrap();
    let mut lines = Vec::new();
    for file in &described.file {
        let package = file.package();
        for service in &file.service {
            describe_service(package, service, &mut lines);
        }
        for choice in &file.enum_type {
            describe_enum(package, choice, &mut lines);
        }
        for message in &file.message_type {
            describe_message(package, message, &mut lines);
        }
    }
    lines
}

fn describe_service(package: &str, service: &ServiceDescriptorProto, lines: &mut Vec<String>) {
    lines.push(format!("service {package}.{}", service.name()));
    for call in &service.method {
        let stream = |streaming| if streaming { "stream " } else { "" };
        lines.push(format!(
            "  {}: {}{} -> {}{}",
            call.name(),
            stream(call.client_streaming()),
            call.input_type().trim_start_matches('.'),
            stream(call.server_streaming()),
            call.output_type().trim_start_matches('.'),
        ));
    }
}

fn describe_enum(scope: &str, choice: &EnumDescriptorProto, lines: &mut Vec<String>) {
    lines.push(format!("enum {scope}.{}", choice.name()));
    for value in &choice.value {
        lines.push(format!("  {} {}", value.number(), value.name()));
    }
}

fn describe_message(scope: &str, message: &DescriptorProto, lines: &mut Vec<String>) {
    let name = format!("{scope}.{}", message.name());
    lines.push(format!("message {name}"));
    for field in &message.field {
        lines.push(format!("  {} {} {}", field.number(), field.name(), describe_type(field)));
    }
    for choice in &message.enum_type {
        describe_enum(&name, choice, lines);
    }
    for nested in &message.nested_type {
        describe_message(&name, nested, lines);
    }
}

fn describe_type(field: &FieldDescriptorProto) -> String {
    let label = match field.label() {
        Label::Repeated => "repeated ",
        _ if field.proto3_optional() => "optional ",
        _ if field.oneof_index.is_some() => "oneof ",
        _ => "",
    };
    let kind = match field.r#type() {
        Type::Message | Type::Enum => field.type_name().trim_start_matches('.').to_owned(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    format!("{label}{kind}")
}
