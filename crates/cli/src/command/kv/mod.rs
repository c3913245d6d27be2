//! `quorate put`, `get`, `del`, `watch` and `txn`: etcdctl's commands, with its output.

mod requests;
mod simple;
mod txn;
mod txn_text;
mod watch;
mod wire_json;

use std::io::Read;

use tonic::Status;

pub(crate) use self::txn::run as txn;
pub(crate) use self::watch::run as watch;
pub(crate) use self::wire_json::{base64_text, go_header};
use crate::arguments::WriteOut;
use crate::client::{Connection, connect};
use crate::command::kv::simple::SimpleText;
use crate::error::CliError;
use crate::kv_arguments::{DeleteArguments, GetArguments, PutArguments};
use crate::print;

pub(crate) async fn put(arguments: PutArguments) -> Result<(), CliError> {
    let PutArguments { mut put, output, client } = arguments;
    let value = match put.value.take() {
        Some(value) => value.into_bytes(),
        None if put.ignore_value => Vec::new(),
        None => standard_input()?,
    };
    let connection = connect(&client).await?;
    let request = connection.request(requests::put(&put, value));
    let reply = connection.kv().put(request).await;
    let reply = reply.map_err(failure("cannot write the key", &connection))?.into_inner();
    match client.write_out {
        WriteOut::Table => SimpleText::new(output).put(&reply).print(),
        WriteOut::Json => print::json(&wire_json::put(&reply)),
    }
    Ok(())
}

pub(crate) async fn get(arguments: GetArguments) -> Result<(), CliError> {
    let GetArguments { get, print_value_only, output, client } = arguments;
    let connection = connect(&client).await?;
    let request = connection.request(requests::range(&get));
    let reply = connection.kv().range(request).await;
    let reply = reply.map_err(failure("cannot read", &connection))?.into_inner();
    match client.write_out {
        WriteOut::Table if get.count_only => print::line(&reply.count.to_string()),
        WriteOut::Table => {
            let mut text = SimpleText::new(output);
            text.values_only = print_value_only;
            text.range(&reply).print();
        }
        WriteOut::Json => print::json(&wire_json::range(&reply)),
    }
    Ok(())
}

pub(crate) async fn delete(arguments: DeleteArguments) -> Result<(), CliError> {
    let DeleteArguments { delete, output, client } = arguments;
    let connection = connect(&client).await?;
    let request = connection.request(requests::delete(&delete));
    let reply = connection.kv().delete_range(request).await;
    let reply = reply.map_err(failure("cannot delete", &connection))?.into_inner();
    match client.write_out {
        WriteOut::Table => SimpleText::new(output).delete(&reply).print(),
        WriteOut::Json => print::json(&wire_json::delete(&reply)),
    }
    Ok(())
}

fn standard_input() -> Result<Vec<u8>, CliError> {
    let mut value = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut value);
    read.map_err(|error| CliError::with_cause("cannot read the value", &error))?;
    Ok(value)
}

pub(crate) fn failure<'c>(
    context: &'c str,
    connection: &'c Connection,
) -> impl Fn(Status) -> CliError + 'c {
    move |status| CliError::from_status(context, &connection.endpoint, &status)
}
