//! The form that all trace files share: a command line, input lines, `----`, and the
//! expected output up to a blank line.
//!
//! Knows nothing of what the commands mean. Whatever a file holds, reading it gives
//! commands or says what is wrong and where: a trace is data from outside.

/// One command of a trace, with what it has to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TraceCommand {
    /// The line of the file that the command stands on, counted from 1.
    pub(super) line: usize,
    pub(super) name: String,
    /// What follows the name on its line, as it stands there.
    pub(super) rest: String,
    pub(super) input: Vec<String>,
    pub(super) expected: Vec<String>,
}

/// A file that is not a trace: the line, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MalformedTrace {
    pub(super) line: usize,
    pub(super) what: String,
}

const SEPARATOR: &str = "----";

/// Reads all commands of a file.
pub(super) fn parse(text: &str) -> Result<Vec<TraceCommand>, MalformedTrace> {
    let mut commands = Vec::new();
    let mut lines = text.lines().map(str::trim_end).enumerate();
    while let Some((at, line)) = lines.next() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let mut command = head(at + 1, line);
        let mut separated = false;
        for (_, line) in lines.by_ref() {
            if line == SEPARATOR {
                separated = true;
                break;
            }
            command.input.push(line.to_owned());
        }
        if !separated {
            let what = format!("no {SEPARATOR} follows the command `{}`", command.name);
            return Err(MalformedTrace { line: at + 1, what });
        }
        let expected = lines.by_ref().map(|(_, line)| line).take_while(|line| !line.is_empty());
        command.expected.extend(expected.map(str::to_owned));
        commands.push(command);
    }
    if commands.is_empty() {
        return Err(MalformedTrace { line: 1, what: "holds no command".to_owned() });
    }
    Ok(commands)
}

fn head(line: usize, text: &str) -> TraceCommand {
    let text = text.trim();
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    TraceCommand {
        line,
        name: name.to_owned(),
        rest: rest.trim().to_owned(),
        input: Vec::new(),
        expected: Vec::new(),
    }
}

/// One argument: `key`, `key=value` or `key=(value, value)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Argument {
    pub(super) key: String,
    /// None for a bare word.
    pub(super) values: Option<Vec<String>>,
}

impl Argument {
    /// The only value of a named argument.
    pub(super) fn value(&self) -> Result<&str, String> {
        match self.values.as_deref() {
            Some([value]) => Ok(value),
            _ => Err(format!("argument `{}` wants one value", self.key)),
        }
    }

    pub(super) fn number(&self) -> Result<u64, String> {
        number(self.value()?)
    }

    pub(super) fn numbers(&self) -> Result<Vec<u64>, String> {
        self.values.iter().flatten().map(|value| number(value)).collect()
    }

    pub(super) fn boolean(&self) -> Result<bool, String> {
        match self.value()? {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(format!("argument `{}` is `{other}`, expected true or false", self.key)),
        }
    }

    /// The complaint about an argument that the command does not have.
    pub(super) fn unknown(&self) -> String {
        format!("unknown argument `{}`", self.key)
    }
}

impl TraceCommand {
    pub(super) fn arguments(&self) -> Result<Vec<Argument>, String> {
        arguments(&self.rest)
    }
}

/// Splits the rest of a command line; blanks inside parentheses do not split.
fn arguments(text: &str) -> Result<Vec<Argument>, String> {
    let mut found = Vec::new();
    let mut left = text.trim_start();
    while !left.is_empty() {
        let key_end = left.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(left.len());
        let (key, after) = left.split_at(key_end);
        let key = key.to_owned();
        let Some(value) = after.strip_prefix('=') else {
            found.push(Argument { key, values: None });
            left = after.trim_start();
            continue;
        };
        let (values, after) = match value.strip_prefix('(') {
            Some(list) => {
                let Some((list, after)) = list.split_once(')') else {
                    return Err(format!("argument `{key}` has no closing parenthesis"));
                };
                let items = list.split(|c: char| c == ',' || c.is_whitespace());
                (items.filter(|item| !item.is_empty()).map(str::to_owned).collect(), after)
            }
            None => {
                let end = value.find(char::is_whitespace).unwrap_or(value.len());
                let (value, after) = value.split_at(end);
                (vec![value.to_owned()], after)
            }
        };
        if !after.is_empty() && !after.starts_with(char::is_whitespace) {
            return Err(format!("argument `{key}` is followed by `{after}`"));
        }
        found.push(Argument { key, values: Some(values) });
        left = after.trim_start();
    }
    Ok(found)
}

pub(super) fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_input_and_output() {
        let text = "# story\n\nfirst 1 key=(a, b)\nin\n----\nout\nmore\n\nsecond\n----\nok\n";
        let commands = parse(text).unwrap();
        assert_eq!(commands.len(), 2);
        assert_eq!((commands[0].line, commands[0].name.as_str()), (3, "first"));
        assert_eq!(commands[0].input, ["in"]);
        assert_eq!(commands[0].expected, ["out", "more"]);
        assert_eq!((commands[1].line, commands[1].expected.len()), (9, 1));
        let arguments = commands[0].arguments().unwrap();
        assert_eq!(arguments[0], Argument { key: "1".to_owned(), values: None });
        assert_eq!(arguments[1].values.as_deref(), Some(&["a".to_owned(), "b".to_owned()][..]));
    }

    #[test]
    fn what_is_not_a_trace_is_refused_with_its_line() {
        assert_eq!(parse("# nothing\n").unwrap_err().line, 1);
        assert_eq!(parse("\n\ncampaign 1\nok\n").unwrap_err().line, 3);
        assert!(arguments("voters=(1,2").is_err());
        assert!(arguments("voters=(1,2)x").is_err());
        assert!(number("-1").is_err());
    }
}
