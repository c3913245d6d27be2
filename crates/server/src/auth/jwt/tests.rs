use std::path::PathBuf;

use super::*;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/auth/jwt/testdata").join(name)
}

fn config(sign_method: SignMethod, key: &str) -> JwtConfig {
    JwtConfig {
        sign_method,
        public_key: Some(path(&format!("{key}.pub"))),
        private_key: Some(path(&format!("{key}.key"))),
        ttl: Duration::from_secs(60),
    }
}

fn load(sign_method: SignMethod, key: &str) -> JwtTokens {
    JwtTokens::load(&config(sign_method, key)).unwrap_or_else(|error| panic!("{error}"))
}

const ALL: [(SignMethod, &str); 12] = [
    (SignMethod::Rs256, "rsa"),
    (SignMethod::Rs384, "rsa"),
    (SignMethod::Rs512, "rsa"),
    (SignMethod::Ps256, "rsa"),
    (SignMethod::Ps384, "rsa"),
    (SignMethod::Ps512, "rsa"),
    (SignMethod::Es256, "p256"),
    (SignMethod::Es384, "p384"),
    (SignMethod::EdDsa, "ed"),
    (SignMethod::Hs256, "ed"),
    (SignMethod::Hs384, "ed"),
    (SignMethod::Hs512, "ed"),
];

#[test]
fn tokens_are_valid_for_their_own_method_only() {
    let all: Vec<JwtTokens> = ALL.iter().map(|(method, key)| load(*method, key)).collect();
    for (number, signer) in all.iter().enumerate() {
        let token = signer.sign("alice", 7).unwrap();
        for (other, checker) in all.iter().enumerate() {
            let claims = checker.check(&token);
            assert_eq!(claims.is_some(), number == other, "{number} by {other}");
            if let Some(claims) = claims {
                assert_eq!((claims.user.as_str(), claims.revision), ("alice", 7));
                assert!(claims.expires > now());
            }
        }
    }
}

/// The classic attacks: no signature, and the public key as the secret of an HMAC.
#[test]
fn forged_tokens_are_invalid() {
    let tokens = load(SignMethod::Rs256, "rsa");
    let valid = tokens.sign("alice", 7).unwrap();
    let parts: Vec<&str> = valid.split('.').collect();
    let (claims, signature) = (parts[1], parts[2]);
    // {"alg":"none","typ":"JWT"}
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
    let public = std::fs::read(path("rsa.pub")).unwrap();
    let body = json!({ "username": "root", "revision": 7, "exp": now() + 60 });
    let key = EncodingKey::from_secret(&public);
    let confused = encode(&Header::new(Algorithm::HS256), &body, &key).unwrap();
    let other = parts[0];
    let long = "x".repeat(TOKEN_BYTES_MAX + 1);
    for forged in [
        format!("{none}.{claims}."),
        format!("{none}.{claims}.{signature}"),
        format!("{other}.{claims}.AAAA"),
        format!("{other}.{claims}"),
        confused,
        long,
        "..".into(),
        String::new(),
        "\0.\u{e9}.\u{e9}".into(),
    ] {
        assert_eq!(tokens.check(&forged), None, "{forged}");
    }
}

#[test]
fn claims_that_are_missing_or_expired_are_invalid() {
    let tokens = load(SignMethod::Hs256, "ed");
    let sign = |claims: Value| {
        let key = tokens.signing.as_ref().unwrap();
        encode(&Header::new(Algorithm::HS256), &claims, key).unwrap()
    };
    let later = now() + 60;
    let valid = json!({ "username": "a", "revision": 3.0, "exp": later });
    assert_eq!(tokens.check(&sign(valid)).map(|claims| claims.revision), Some(3));
    for claims in [
        json!({ "username": "a", "revision": 3, "exp": now() - 1 }),
        json!({ "username": "a", "revision": 3 }),
        json!({ "username": "a", "exp": later }),
        json!({ "revision": 3, "exp": later }),
        json!({ "username": 1, "revision": 3, "exp": later }),
        json!({ "username": "a", "revision": "3", "exp": later }),
        json!({ "username": "a", "revision": 3, "exp": later, "nbf": later }),
        json!([]),
    ] {
        assert_eq!(tokens.check(&sign(claims.clone())), None, "{claims}");
    }
    let absurd = json!({ "username": "a", "revision": 3, "exp": u64::MAX });
    assert!(tokens.check(&sign(absurd)).is_none_or(|claims| claims.expires <= EXPIRES_MAX));
}

#[test]
fn keys_are_checked_when_they_are_loaded() {
    let refused = |config: &JwtConfig| JwtTokens::load(config).err();
    let rsa = config(SignMethod::Rs256, "rsa");
    let mixed = JwtConfig { private_key: Some(path("p256.key")), ..rsa.clone() };
    assert!(matches!(refused(&mixed), Some(AuthConfigError::Key { .. })));
    let missing = JwtConfig { public_key: Some(path("none")), ..rsa.clone() };
    assert!(matches!(refused(&missing), Some(AuthConfigError::Key { .. })));
    let none = JwtConfig { public_key: None, ..rsa.clone() };
    assert!(matches!(refused(&none), Some(AuthConfigError::MissingKey { option: "pub-key" })));
    let es = config(SignMethod::Es256, "p256");
    let other = JwtConfig { public_key: Some(path("p384.pub")), ..es };
    assert!(refused(&other).is_some());
    let verify_only = JwtConfig { private_key: None, ..rsa };
    let tokens = JwtTokens::load(&verify_only).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(tokens.sign("a", 1), None);
    assert!(tokens.check(&load(SignMethod::Rs256, "rsa").sign("a", 1).unwrap()).is_some());
}

/// A parser that meets foreign bytes: no change of a valid token is accepted, and none panics.
#[test]
fn changed_tokens_are_invalid() {
    let tokens = load(SignMethod::Hs256, "ed");
    let valid = tokens.sign("alice", 7).unwrap();
    assert!(tokens.check(&valid).is_some());
    let mut seed = 1_u64;
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    let letters = b"abcXYZ019-_.={\"\0";
    for _ in 0..20_000 {
        let mut bytes = valid.clone().into_bytes();
        for _ in 0..=next(3) {
            let position = next(bytes.len());
            match next(3) {
                0 => bytes[position] = letters[next(letters.len())],
                1 => bytes.insert(position, letters[next(letters.len())]),
                _ => {
                    bytes.remove(position);
                }
            }
        }
        let text = String::from_utf8(bytes).unwrap();
        assert!(text == valid || tokens.check(&text).is_none(), "{text}");
    }
}
