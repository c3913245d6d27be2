//! `quorate txn`: reads a transaction from standard input and runs it.

use std::io::{BufRead, IsTerminal, stdin};

use quorate_proto::etcdserverpb as etcd;

use super::simple::SimpleText;
use super::{failure, txn_text, wire_json};
use crate::arguments::WriteOut;
use crate::client::connect;
use crate::error::CliError;
use crate::kv_arguments::TxnArguments;
use crate::print;

pub(crate) async fn run(arguments: TxnArguments) -> Result<(), CliError> {
    let TxnArguments { interactive, output, client } = arguments;
    let prompts = interactive || stdin().is_terminal();
    let request = read(&mut stdin().lock(), prompts)?;
    let connection = connect(&client).await?;
    let request = connection.request(request);
    let reply = connection.kv().txn(request).await;
    let reply = reply.map_err(failure("cannot run the transaction", &connection))?.into_inner();
    match client.write_out {
        WriteOut::Table => SimpleText::new(output).txn(&reply).print(),
        WriteOut::Json => print::json(&wire_json::txn(&reply)),
    }
    Ok(())
}

fn read(input: &mut impl BufRead, prompts: bool) -> Result<etcd::TxnRequest, CliError> {
    let mut part = |title: &str| {
        if prompts {
            eprintln!("{title}");
        }
        lines_of_part(input)
    };
    // As etcdctl, which asks for all parts before it checks any.
    let compare = part("compares (an empty line ends the list):")?;
    let success = part("success requests (get, put, del):")?;
    let failure = part("failure requests (get, put, del):")?;
    let operations = |lines: Vec<String>| {
        lines.iter().map(|line| txn_text::operation(line)).collect::<Result<Vec<_>, _>>()
    };
    Ok(etcd::TxnRequest {
        compare: compare.iter().map(|line| txn_text::condition(line)).collect::<Result<_, _>>()?,
        success: operations(success)?,
        failure: operations(failure)?,
    })
}

/// The lines up to an empty line or the end.
fn lines_of_part(input: &mut impl BufRead) -> Result<Vec<String>, CliError> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        let read = input.read_line(&mut line);
        let read =
            read.map_err(|error| CliError::with_cause("cannot read the transaction", &error))?;
        let line = line.trim();
        if read == 0 || line.is_empty() {
            return Ok(lines);
        }
        lines.push(line.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lines_separate_the_parts() {
        let text = "mod(\"a\") > \"0\"\nmod(\"b\") > \"0\"\n\nput a 1\n\nget a\nget b\n";
        let request = read(&mut text.as_bytes(), false).unwrap();
        let lengths = (request.compare.len(), request.success.len(), request.failure.len());
        assert_eq!(lengths, (2, 1, 2));
        let request = read(&mut "\nput a 1\n".as_bytes(), false).unwrap();
        assert_eq!((request.compare.len(), request.success.len()), (0, 1));
    }
}
