//! Replies as etcdctl prints them for people: keys and values on lines of their own.

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::response_op::Response;
use quorate_proto::mvccpb;

use crate::kv_arguments::BytesArguments;
use crate::print;

pub(super) struct SimpleText {
    hex: bool,
    pub(super) values_only: bool,
    /// Keys and values need not be text.
    bytes: Vec<u8>,
}

impl SimpleText {
    pub(super) fn new(arguments: BytesArguments) -> Self {
        Self { hex: arguments.hex, values_only: false, bytes: Vec::new() }
    }

    pub(super) fn print(&self) {
        print::raw(&self.bytes);
    }

    pub(super) fn put(&mut self, reply: &etcd::PutResponse) -> &mut Self {
        self.line(b"OK");
        reply.prev_kv.iter().for_each(|pair| self.pair(pair));
        self
    }

    pub(super) fn range(&mut self, reply: &etcd::RangeResponse) -> &mut Self {
        reply.kvs.iter().for_each(|pair| self.pair(pair));
        self
    }

    pub(super) fn delete(&mut self, reply: &etcd::DeleteRangeResponse) -> &mut Self {
        self.line(reply.deleted.to_string().as_bytes());
        reply.prev_kvs.iter().for_each(|pair| self.pair(pair));
        self
    }

    pub(super) fn txn(&mut self, reply: &etcd::TxnResponse) -> &mut Self {
        self.line(if reply.succeeded { b"SUCCESS" } else { b"FAILURE" });
        for response in reply.responses.iter().filter_map(|one| one.response.as_ref()) {
            self.line(b"");
            match response {
                Response::ResponsePut(reply) => self.put(reply),
                Response::ResponseRange(reply) => self.range(reply),
                Response::ResponseDeleteRange(reply) => self.delete(reply),
                Response::ResponseTxn(reply) => self.txn(reply),
            };
        }
        self
    }

    pub(super) fn event(&mut self, event: &mvccpb::Event) -> &mut Self {
        self.line(event.r#type().as_str_name().as_bytes());
        event.prev_kv.iter().chain(&event.kv).for_each(|pair| self.pair(pair));
        self
    }

    fn pair(&mut self, pair: &mvccpb::KeyValue) {
        if !self.values_only {
            self.text(&pair.key);
        }
        self.text(&pair.value);
    }

    fn text(&mut self, bytes: &[u8]) {
        if self.hex {
            let text: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            return self.line(text.as_bytes());
        }
        self.line(bytes);
    }

    fn line(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.bytes.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> mvccpb::KeyValue {
        mvccpb::KeyValue {
            key: "k".into(),
            value: vec![0xff, 0x0a].into(),
            ..mvccpb::KeyValue::default()
        }
    }

    #[test]
    fn bytes_are_printed_unchanged_or_as_hex() {
        let reply = etcd::RangeResponse { kvs: vec![pair()], ..etcd::RangeResponse::default() };
        let mut plain = SimpleText::new(BytesArguments { hex: false });
        assert_eq!(plain.range(&reply).bytes, b"k\n\xff\n\n");
        let mut hex = SimpleText::new(BytesArguments { hex: true });
        hex.values_only = true;
        assert_eq!(hex.range(&reply).bytes, b"\\xff\\x0a\n");
    }
}
