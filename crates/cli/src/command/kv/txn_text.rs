//! The text of a transaction, as etcdctl reads it: conditions, then operations.

use clap::Parser;
use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_proto::etcdserverpb::request_op::Request;

use super::requests;
use crate::error::CliError;
use crate::kv_arguments::TxnLine;

/// A condition such as `mod("key") > "0"`.
pub(super) fn condition(line: &str) -> Result<etcd::Compare, CliError> {
    let invalid = |problem: &str| {
        CliError::usage(format!(
            "'{line}' is not a condition: {problem}; an example is: mod(\"key\") > \"0\""
        ))
    };
    let (target, rest) = line.split_once('(').ok_or_else(|| invalid("no '('"))?;
    let (key, rest) = operand(rest).ok_or_else(|| invalid("the key is not quoted"))?;
    let rest = rest.trim_start().strip_prefix(')').ok_or_else(|| invalid("no ')'"))?;
    let rest = rest.trim_start();
    // `!=` first, since `=` is a part of it.
    let results = [
        ("!=", CompareResult::NotEqual),
        ("=", CompareResult::Equal),
        (">", CompareResult::Greater),
        ("<", CompareResult::Less),
    ];
    let found = results.iter().find_map(|(sign, result)| Some((result, rest.strip_prefix(sign)?)));
    let (result, rest) = found.ok_or_else(|| invalid("no =, !=, < or >"))?;
    let (value, rest) = operand(rest).ok_or_else(|| invalid("the value is not quoted"))?;
    if !rest.trim().is_empty() {
        return Err(invalid(&format!("'{}' follows the value", rest.trim())));
    }
    let number = |radix| {
        i64::from_str_radix(&value, radix).map_err(|_| invalid(&format!("'{value}' is no number")))
    };
    let (target, union) = match target.trim().to_ascii_lowercase().as_str() {
        "ver" | "version" => (CompareTarget::Version, TargetUnion::Version(number(10)?)),
        "c" | "create" => (CompareTarget::Create, TargetUnion::CreateRevision(number(10)?)),
        "m" | "mod" => (CompareTarget::Mod, TargetUnion::ModRevision(number(10)?)),
        "val" | "value" => (CompareTarget::Value, TargetUnion::Value(value.clone().into())),
        "lease" => (CompareTarget::Lease, TargetUnion::Lease(number(16)?)),
        other => {
            return Err(invalid(&format!(
                "'{other}' is not one of value, version, create, mod and lease"
            )));
        }
    };
    Ok(etcd::Compare {
        result: *result as i32,
        target: target as i32,
        key: key.into(),
        target_union: Some(union),
        ..etcd::Compare::default()
    })
}

/// An operation such as `put key "value"`.
pub(super) fn operation(line: &str) -> Result<etcd::RequestOp, CliError> {
    let words = words(line)?;
    let parsed = TxnLine::try_parse_from(&words).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        CliError::usage(format!("'{line}' is not an operation (put, get or del): {first}"))
    })?;
    let request = match parsed {
        TxnLine::Put(mut options) => {
            if options.value.is_none() && !options.ignore_value {
                return Err(CliError::usage(format!("'{line}' has no value")));
            }
            let value = options.value.take().unwrap_or_default();
            Request::RequestPut(requests::put(&options, value.into_bytes()))
        }
        TxnLine::Get(options) => Request::RequestRange(requests::range(&options)),
        TxnLine::Del(options) => Request::RequestDeleteRange(requests::delete(&options)),
    };
    Ok(etcd::RequestOp { request: Some(request) })
}

/// A text in quotes, and the rest of the line. Without quotes, a word.
fn operand(text: &str) -> Option<(String, &str)> {
    let text = text.trim_start();
    match text.chars().next()? {
        '"' | '\'' => quoted(text),
        _ => {
            let end = text.find([')', ' ', '\t']).unwrap_or(text.len());
            Some((text[..end].to_owned(), &text[end..]))
        }
    }
}

/// The quoted text at the beginning, and the rest. In double quotes a backslash escapes.
fn quoted(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next()?;
    let mut content = String::new();
    let mut characters = text.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' if quote == '"' => match characters.next()?.1 {
                'n' => content.push('\n'),
                't' => content.push('\t'),
                'r' => content.push('\r'),
                other => content.push(other),
            },
            _ if character == quote => return Some((content, &text[at + 1..])),
            _ => content.push(character),
        }
    }
    None
}

fn words(line: &str) -> Result<Vec<String>, CliError> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while let Some(first) = rest.chars().next() {
        let (word, after) = match first {
            '"' | '\'' => quoted(rest)
                .ok_or_else(|| CliError::usage(format!("'{line}' has a quote without an end")))?,
            _ => {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                (rest[..end].to_owned(), &rest[end..])
            }
        };
        words.push(word);
        rest = after.trim_start();
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_parsed() {
        let parsed = condition(r#"mod("a b") != "7""#).unwrap();
        assert_eq!(parsed.key, "a b");
        assert_eq!(parsed.result(), CompareResult::NotEqual);
        assert_eq!(parsed.target_union, Some(TargetUnion::ModRevision(7)));
        let parsed = condition(r#"value( "k" )="say \"x\"""#).unwrap();
        assert_eq!(parsed.target_union, Some(TargetUnion::Value(r#"say "x""#.into())));
        let parsed = condition(r#"lease("k") = "1f""#).unwrap();
        assert_eq!(parsed.target_union, Some(TargetUnion::Lease(31)));
        assert_eq!(condition("version(k) > 3").unwrap().result(), CompareResult::Greater);
    }

    #[test]
    fn invalid_conditions_say_why() {
        for (line, part) in [
            ("value", "no '('"),
            (r#"size("k") = "1""#, "'size' is not one of"),
            (r#"mod("k") = "x""#, "'x' is no number"),
            (r#"mod("k") ~ "1""#, "no =, !=, < or >"),
            (r#"mod("k") = "1" 2"#, "'2' follows"),
            (r#"mod("k = "#, "not quoted"),
        ] {
            let text = condition(line).unwrap_err().to_string();
            assert!(text.contains(part), "{line}: {text}");
        }
    }

    #[test]
    fn operations_are_parsed() {
        let Some(Request::RequestPut(put)) = operation(r#"put key "two words""#).unwrap().request
        else {
            panic!("not a put");
        };
        assert_eq!((&*put.key, &*put.value), (&b"key"[..], &b"two words"[..]));
        let Some(Request::RequestDeleteRange(delete)) =
            operation("del a --prefix").unwrap().request
        else {
            panic!("not a del");
        };
        assert_eq!(delete.range_end, "b");
        for (line, part) in [
            ("move a b", "is not an operation"),
            ("put a", "has no value"),
            ("put a \"b", "a quote without an end"),
        ] {
            let text = operation(line).unwrap_err().to_string();
            assert!(text.contains(part), "{line}: {text}");
        }
    }
}
