//! The messages and methods of the API, as the gateway needs them, from the descriptors in
//! `quorate-proto`.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet,
};

/// All messages and methods.
pub(super) static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    // The descriptors are part of this program; a test reads them.
    let files = FileDescriptorSet::decode(quorate_proto::DESCRIPTORS).unwrap_or_default();
    Schema::new(&files)
});

#[derive(Debug, Default)]
pub(super) struct Schema {
    messages: Vec<MessageSchema>,
    enums: Vec<EnumSchema>,
    /// By path, such as `/etcdserverpb.KV/Range`.
    methods: HashMap<String, MethodSchema>,
}

/// The number of a message in the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageId(usize);

/// The number of an enum in the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EnumId(usize);

#[derive(Debug)]
pub(super) struct MessageSchema {
    pub(super) fields: Vec<FieldSchema>,
}

#[derive(Debug)]
pub(super) struct FieldSchema {
    pub(super) number: u32,
    /// The name in `proto/`, which responses have.
    pub(super) name: String,
    /// The same in camel case; requests may have either.
    json_name: String,
    pub(super) kind: FieldKind,
    pub(super) is_repeated: bool,
    /// At most one field of a oneof is set, and it may be set to zero.
    pub(super) oneof: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldKind {
    Bool,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Enum(EnumId),
    String,
    Bytes,
    Message(MessageId),
    /// None of the messages of the gateway has one; a test checks it.
    Unsupported,
}

#[derive(Debug)]
pub(super) struct EnumSchema {
    values: Vec<(String, i32)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct MethodSchema {
    pub(super) request: MessageId,
    pub(super) response: MessageId,
    pub(super) streams_requests: bool,
    pub(super) streams_responses: bool,
}

impl Schema {
    fn new(files: &FileDescriptorSet) -> Self {
        let mut names = TypeNames::default();
        for file in &files.file {
            names.add_file(file);
        }
        let messages = names.messages.iter().map(|message| names.message_schema(message));
        let enums = names.enums.iter().map(|descriptor| EnumSchema {
            values: descriptor.value.iter().map(|v| (v.name().to_owned(), v.number())).collect(),
        });
        let (messages, enums) = (messages.collect(), enums.collect());
        let mut methods = HashMap::new();
        for file in &files.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    let (request, response) =
                        (names.message(method.input_type()), names.message(method.output_type()));
                    let (Some(request), Some(response)) = (request, response) else { continue };
                    let schema = MethodSchema {
                        request,
                        response,
                        streams_requests: method.client_streaming(),
                        streams_responses: method.server_streaming(),
                    };
                    methods.insert(path, schema);
                }
            }
        }
        Self { messages, enums, methods }
    }

    pub(super) fn message(&self, id: MessageId) -> &MessageSchema {
        &self.messages[id.0]
    }

    pub(super) fn enumeration(&self, id: EnumId) -> &EnumSchema {
        &self.enums[id.0]
    }

    pub(super) fn method(&self, path: &str) -> Option<MethodSchema> {
        self.methods.get(path).copied()
    }

    #[cfg(test)]
    pub(super) fn method_paths(&self) -> impl Iterator<Item = &str> {
        self.methods.keys().map(String::as_str)
    }
}

impl MessageSchema {
    /// The position of the field with this name.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name || field.json_name == name)
    }

    pub(super) fn by_number(&self, number: u32) -> Option<&FieldSchema> {
        self.fields.iter().find(|field| field.number == number)
    }
}

impl EnumSchema {
    pub(super) fn number(&self, name: &str) -> Option<i32> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, number)| *number)
    }

    pub(super) fn name(&self, number: i32) -> Option<&str> {
        self.values.iter().find(|(_, known)| *known == number).map(|(name, _)| name.as_str())
    }
}

/// Messages and enums in the order of their ids.
#[derive(Default)]
struct TypeNames<'a> {
    messages: Vec<&'a DescriptorProto>,
    enums: Vec<&'a EnumDescriptorProto>,
    message_ids: HashMap<String, MessageId>,
    enum_ids: HashMap<String, EnumId>,
}

impl<'a> TypeNames<'a> {
    fn add_file(&mut self, file: &'a FileDescriptorProto) {
        let package = format!(".{}", file.package());
        for descriptor in &file.enum_type {
            self.add_enum(&package, descriptor);
        }
        for descriptor in &file.message_type {
            self.add_message(&package, descriptor);
        }
    }

    fn add_message(&mut self, scope: &str, descriptor: &'a DescriptorProto) {
        let name = format!("{scope}.{}", descriptor.name());
        for nested in &descriptor.enum_type {
            self.add_enum(&name, nested);
        }
        for nested in &descriptor.nested_type {
            self.add_message(&name, nested);
        }
        self.message_ids.insert(name, MessageId(self.messages.len()));
        self.messages.push(descriptor);
    }

    fn add_enum(&mut self, scope: &str, descriptor: &'a EnumDescriptorProto) {
        let name = format!("{scope}.{}", descriptor.name());
        self.enum_ids.insert(name, EnumId(self.enums.len()));
        self.enums.push(descriptor);
    }

    fn message(&self, name: &str) -> Option<MessageId> {
        self.message_ids.get(name).copied()
    }

    fn message_schema(&self, descriptor: &DescriptorProto) -> MessageSchema {
        let field = |field: &FieldDescriptorProto| FieldSchema {
            number: u32::try_from(field.number()).unwrap_or_default(),
            name: field.name().to_owned(),
            json_name: field.json_name().to_owned(),
            kind: self.kind(field),
            is_repeated: field.label() == Label::Repeated,
            oneof: field.oneof_index.and_then(|index| u32::try_from(index).ok()),
        };
        MessageSchema { fields: descriptor.field.iter().map(field).collect() }
    }

    fn kind(&self, field: &FieldDescriptorProto) -> FieldKind {
        let known = match field.r#type() {
            Type::Bool => Some(FieldKind::Bool),
            Type::Int32 => Some(FieldKind::Int32),
            Type::Uint32 => Some(FieldKind::Uint32),
            Type::Int64 => Some(FieldKind::Int64),
            Type::Uint64 => Some(FieldKind::Uint64),
            Type::String => Some(FieldKind::String),
            Type::Bytes => Some(FieldKind::Bytes),
            Type::Enum => self.enum_ids.get(field.type_name()).copied().map(FieldKind::Enum),
            Type::Message => self.message(field.type_name()).map(FieldKind::Message),
            _ => None,
        };
        known.unwrap_or(FieldKind::Unsupported)
    }
}
