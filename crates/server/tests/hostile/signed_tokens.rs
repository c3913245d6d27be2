//! Forged signed tokens (JWT), at a member that signs and checks with ES256. Each is refused with
//! the answer that every wrong token gets.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use quorate_server::{AuthTokenConfig, JwtConfig, SignMethod};
use serde_json::{Value, json};

use crate::Report;
use crate::support::TestMember;
use crate::tokens::{enable, is_refused, login, range};

pub(crate) const CASES: usize = 40;

fn key_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/auth/jwt/testdata").join(name)
}

fn key(name: &str) -> Vec<u8> {
    std::fs::read(key_path(name)).unwrap()
}

pub(crate) fn config() -> AuthTokenConfig {
    AuthTokenConfig::Jwt(JwtConfig {
        sign_method: SignMethod::Es256,
        public_key: Some(key_path("p256.pub")),
        private_key: Some(key_path("p256.key")),
        ttl: Duration::from_secs(600),
    })
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn encoded(text: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(text)
}

/// What a valid token says, with these changes. `null` removes a claim.
fn claims(changes: &Value) -> Value {
    let mut claims = json!({ "username": "root", "revision": 100, "exp": now() + 600 });
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => _ = claims.as_object_mut().unwrap().remove(name),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

fn sign(algorithm: Algorithm, key: &EncodingKey) -> String {
    jsonwebtoken::encode(&Header::new(algorithm), &claims(&json!({})), key).unwrap()
}

/// With the key of the server: only the claims are wrong.
fn sign_claims(claims: &Value) -> String {
    let key = EncodingKey::from_ec_pem(&key("p256.key")).unwrap();
    jsonwebtoken::encode(&Header::new(Algorithm::ES256), claims, &key).unwrap()
}

type TokenCase = (&'static str, String);

/// Without a signature, or with one of another method.
fn other_methods() -> Vec<TokenCase> {
    let body = encoded(&claims(&json!({})).to_string());
    let signature = encoded("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    let unsigned =
        |header: &str, signature: &str| format!("{}.{body}.{signature}", encoded(header));
    let secret = EncodingKey::from_secret;
    let rsa = EncodingKey::from_rsa_pem(&key("rsa.key")).unwrap();
    let public = key("p256.pub");
    let der: Vec<u8> = pem_content(&public);
    vec![
        ("alg none", unsigned(r#"{"alg":"none","typ":"JWT"}"#, "")),
        ("alg none with a signature", unsigned(r#"{"alg":"none"}"#, &signature)),
        ("alg None", unsigned(r#"{"alg":"None"}"#, "")),
        ("alg nOnE", unsigned(r#"{"alg":"nOnE"}"#, "")),
        ("an empty alg", unsigned(r#"{"alg":""}"#, "")),
        ("no alg", unsigned(r#"{"typ":"JWT"}"#, &signature)),
        ("alg null", unsigned(r#"{"alg":null}"#, &signature)),
        ("alg as a list", unsigned(r#"{"alg":["none","ES256"]}"#, "")),
        ("two algs", unsigned(r#"{"alg":"ES256","alg":"none"}"#, "")),
        ("an unknown alg", unsigned(r#"{"alg":"ES999"}"#, &signature)),
        ("ES256 without a signature", unsigned(r#"{"alg":"ES256"}"#, "")),
        ("ES256 with a signature of zeros", unsigned(r#"{"alg":"ES256"}"#, &"A".repeat(86))),
        ("the public key as a secret", sign(Algorithm::HS256, &secret(&public))),
        ("the content of the public key as a secret", sign(Algorithm::HS256, &secret(&der))),
        ("the public key as a longer secret", sign(Algorithm::HS512, &secret(&public))),
        ("an empty secret", sign(Algorithm::HS256, &secret(b""))),
        ("RS256", sign(Algorithm::RS256, &rsa)),
        ("PS256", sign(Algorithm::PS256, &rsa)),
        ("ES384", sign(Algorithm::ES384, &EncodingKey::from_ec_pem(&key("p384.key")).unwrap())),
        ("EdDSA", sign(Algorithm::EdDSA, &EncodingKey::from_ed_pem(&key("ed.key")).unwrap())),
    ]
}

fn pem_content(pem: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(pem).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('-'));
    base64::prelude::BASE64_STANDARD.decode(lines.collect::<String>()).unwrap()
}

/// The right method with another key, also where the token says where to find that key.
fn other_keys() -> Vec<TokenCase> {
    let other = rcgen::KeyPair::generate().unwrap();
    let other = EncodingKey::from_ec_pem(other.serialize_pem().as_bytes()).unwrap();
    let named = |change: fn(&mut Header)| {
        let mut header = Header::new(Algorithm::ES256);
        change(&mut header);
        jsonwebtoken::encode(&header, &claims(&json!({})), &other).unwrap()
    };
    vec![
        ("another key", named(|_| {})),
        ("a key by number", named(|header| header.kid = Some("../../../dev/null".into()))),
        ("a key by URL", named(|header| header.jku = Some("http://127.0.0.1:1/keys".into()))),
        ("a certificate by URL", named(|header| header.x5u = Some("http://127.0.0.1:1/a".into()))),
    ]
}

fn wrong_claims() -> Vec<TokenCase> {
    let with = |changes: Value| sign_claims(&claims(&changes));
    vec![
        ("expired", with(json!({ "exp": now() - 1 }))),
        ("expired in 1970", with(json!({ "exp": 0 }))),
        ("a negative expiry", with(json!({ "exp": -1 }))),
        ("an expiry as text", with(json!({ "exp": "never" }))),
        ("no expiry", with(json!({ "exp": null }))),
        ("not valid yet", with(json!({ "nbf": now() + 300 }))),
        ("no user", with(json!({ "username": null }))),
        ("a list of users", with(json!({ "username": ["root"] }))),
        ("no revision", with(json!({ "revision": null }))),
        ("claims that are a list", sign_claims(&json!([1]))),
    ]
}

/// What is left of a valid token, and what is no token.
fn broken(valid: &str) -> Vec<TokenCase> {
    let parts: Vec<&str> = valid.split('.').collect();
    let body = encoded(&claims(&json!({})).to_string());
    vec![
        ("the signature of other claims", format!("{}.{body}.{}", parts[0], parts[2])),
        ("a cut signature", valid[..valid.len() - 4].to_owned()),
        ("a valid token twice", format!("{valid}.{valid}")),
        ("claims of 11 KiB", sign_claims(&claims(&json!({ "more": "x".repeat(8 << 10) })))),
        ("garbage", "%%%.\u{7e}\u{7e}.!!!".to_owned()),
        ("lists in lists", format!("{}.{}.{}", parts[0], encoded(&"[".repeat(5_000)), parts[2])),
    ]
}

pub(crate) async fn run(member: &TestMember, report: &mut Report) {
    let channel = member.channel().await;
    enable(&channel).await;
    let valid = login(&channel).await;
    assert_eq!(range(&channel, "token", valid.as_bytes()).await.unwrap(), 1);
    let cases = [other_methods(), other_keys(), wrong_claims(), broken(&valid)].concat();
    for (name, token) in cases {
        let reply = range(&channel, "token", token.as_bytes()).await;
        let is_right = reply.as_ref().is_err_and(is_refused);
        report.case(name, is_right, reply);
    }
    assert_eq!(range(&channel, "token", valid.as_bytes()).await.unwrap(), 1);
}
