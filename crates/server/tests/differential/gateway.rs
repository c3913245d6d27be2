//! The same for the JSON gateways of both.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::etcd::Etcd;
use crate::http_client::{HttpResponse, post};
use crate::start_like;
use crate::support::TestMember;

const REQUESTS: usize = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateways_of_etcd_and_quorate_give_equal_responses() {
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    let requests = std::env::var("REQUESTS").map_or(REQUESTS, |n| n.parse().unwrap());
    let member = TestMember::new("ours");
    let Some(etcd) = Etcd::start() else {
        eprintln!("skipped: etcd is not installed");
        return;
    };
    let running = start_like(&etcd, &member).await;
    running.wait_ready().await;
    etcd.channel().await;
    let addresses = [etcd.address(), running.client_addresses()[0]];
    let mut random = RandomJson { state: seed, revision: 1 };
    for number in 0..requests {
        let (path, body) = random.request();
        let [expected, found] = both(addresses, path, &body).await;
        let label = format!("seed {seed}, request {number}: {path} {body}");
        assert_eq!(comparable(&found), comparable(&expected), "ours, then etcd; {label}");
        if let Some(revision) = expected.json()["header"]["revision"].as_str() {
            random.revision = revision.parse().unwrap();
        }
    }
    running.stop().await;
}

async fn both(addresses: [SocketAddr; 2], path: &str, body: &str) -> [HttpResponse; 2] {
    let [etcd, ours] = addresses;
    let (etcd, ours) = tokio::join!(post(etcd, path, body), post(ours, path, body));
    [etcd, ours]
}

/// A response without ids, terms, and what differs between the versions of etcd.
fn comparable(response: &HttpResponse) -> (u16, Vec<Value>) {
    let mut code = response.code;
    let values = response.body.lines().map(|line| {
        let mut value: Value = serde_json::from_str(line).unwrap_or_else(|_| json!(line));
        remove_ids(&mut value);
        if let Some(object) = value.as_object_mut()
            && object.contains_key("code")
        {
            // 3.4 repeats the message as `error`, and has another code for a failed precondition.
            object.remove("error");
            if object["code"] == 9 {
                code = 400;
            }
            // Each library words malformed JSON in its own way.
            let is_etcds = object["message"].as_str().is_some_and(|text| text.starts_with("etcd"));
            if object["code"] == 3 && !is_etcds {
                object.remove("message");
            }
        }
        value
    });
    let values = values.collect();
    (code, values)
}

fn remove_ids(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for name in ["cluster_id", "member_id", "raft_term"] {
                fields.remove(name);
            }
            fields.values_mut().for_each(remove_ids);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_ids),
        _ => {}
    }
}

/// Random requests that both versions of etcd answer alike.
struct RandomJson {
    state: u64,
    revision: i64,
}

impl RandomJson {
    fn below(&mut self, limit: u64) -> u64 {
        // Numbers of a linear congruential generator; the high bits are the random ones.
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 33) % limit
    }

    fn one_of<'a>(&mut self, values: &[&'a str]) -> &'a str {
        values[self.below(values.len() as u64) as usize]
    }

    /// A key: `a` to `d`, nothing, or what is no base64.
    fn key(&mut self) -> String {
        let keys = ["YQ==", "Yg==", "Yw==", "ZA==", "YWE=", "YQ==", "Yg==", "", "A", "Z!=="];
        self.one_of(&keys).to_owned()
    }

    fn number(&mut self) -> String {
        let revision = self.revision;
        let back = self.below(6) as i64;
        let numbers = [
            format!("\"{}\"", revision - back),
            format!("{}", revision - back),
            "0".into(),
            "\"3\"".into(),
            "null".into(),
            "\"x\"".into(),
            "true".into(),
            "[1]".into(),
            "1.5".into(),
            "99999999999999999999".into(),
        ];
        let choice = if self.below(3) == 0 { self.below(10) } else { self.below(4) };
        numbers[choice as usize].clone()
    }

    fn range(&mut self) -> String {
        let (key, end) = (self.key(), self.key());
        let end_name = self.one_of(&["range_end", "rangeEnd"]);
        let mut fields = vec![format!("\"key\":\"{key}\"")];
        if self.below(2) == 0 {
            fields.push(format!("\"{end_name}\":\"{end}\""));
        }
        for (name, chance) in [("limit", 4), ("revision", 5), ("min_mod_revision", 8)] {
            if self.below(chance) == 0 {
                fields.push(format!("\"{name}\":{}", self.number()));
            }
        }
        for field in [
            "\"sort_order\":\"DESCEND\"",
            "\"sortOrder\":1",
            "\"sort_target\":\"MOD\"",
            "\"serializable\":true",
            "\"keys_only\":true",
            "\"countOnly\":true",
            "\"unknown\":{\"a\":[1,null]}",
        ] {
            let is_double = field.starts_with("\"sortOrder") && fields.join("").contains("sort_o");
            if self.below(6) == 0 && !is_double {
                fields.push(field.to_owned());
            }
        }
        format!("{{{}}}", fields.join(","))
    }

    fn put(&mut self) -> String {
        let (key, value) = (self.key(), self.key());
        let lease = self.one_of(&["", "", "", ",\"lease\":\"7\"", ",\"lease\":8"]);
        let flags = self.one_of(&["", "", ",\"prev_kv\":true", ",\"ignore_lease\":true"]);
        format!("{{\"key\":\"{key}\",\"value\":\"{value}\"{lease}{flags}}}")
    }

    fn delete(&mut self) -> String {
        let (key, end) = (self.key(), self.key());
        format!("{{\"key\":\"{key}\",\"range_end\":\"{end}\",\"prevKv\":true}}")
    }

    fn operation(&mut self) -> String {
        match self.below(3) {
            0 => format!("{{\"requestRange\":{}}}", self.range()),
            1 => format!("{{\"request_put\":{}}}", self.put()),
            _ => format!("{{\"requestDeleteRange\":{}}}", self.delete()),
        }
    }

    fn txn(&mut self) -> String {
        let (key, number) = (self.key(), self.number());
        let target = self.one_of(&[
            "\"target\":\"MOD\",\"mod_revision\":",
            "\"target\":1,\"createRevision\":",
            "\"version\":",
        ]);
        let result = self.one_of(&["", "\"result\":\"GREATER\",", "\"result\":2,"]);
        let compare = format!("{{\"key\":\"{key}\",{result}{target}{number}}}");
        let (one, other, third) = (self.operation(), self.operation(), self.operation());
        format!("{{\"compare\":[{compare}],\"success\":[{one}],\"failure\":[{other},{third}]}}")
    }

    fn request(&mut self) -> (&'static str, String) {
        let id = self.one_of(&["\"7\"", "8", "\"9\""]).to_owned();
        match self.below(20) {
            0..=4 => ("/v3/kv/put", self.put()),
            5..=9 => ("/v3/kv/range", self.range()),
            10 | 11 => ("/v3/kv/deleterange", self.delete()),
            12..=14 => ("/v3/kv/txn", self.txn()),
            15 => ("/v3/lease/grant", format!("{{\"TTL\":\"5000\",\"ID\":{id}}}")),
            16 => ("/v3/lease/revoke", format!("{{\"ID\":{id}}}")),
            17 => ("/v3beta/kv/range", self.range()),
            18 => ("/v3/election/leader", format!("{{\"name\":\"{}\"}}", self.key())),
            _ => {
                let bodies = ["", "{", "[]", "{\"key\":5}", "{\"key\":{}}", "nothing", "{}"];
                ("/v3/kv/put", self.one_of(&bodies).to_owned())
            }
        }
    }
}
