//! Reads fields that rustls does not expose: of a certificate, the common name of its subject and
//! the end of its validity; of a revocation list, its issuer. (RFC 5280, sections 4.1 and 5.1; DER
//! is X.690.)

use std::time::{Duration, SystemTime};

/// The common name of the subject: the last one if there are several, as Go has it. None if
/// there is none, or if the certificate is malformed.
pub(super) fn common_name(certificate: &[u8]) -> Option<String> {
    let mut subject = fields(certificate)?.subject;
    let mut found = None;
    while !subject.is_empty() {
        let mut attributes = take(&mut subject, SET)?;
        while !attributes.is_empty() {
            let mut attribute = take(&mut attributes, SEQUENCE)?;
            let kind = take(&mut attribute, OBJECT_ID)?;
            let (tag, value) = take_any(&mut attribute)?;
            if kind == COMMON_NAME {
                found = Some(text(tag, value)?);
            }
        }
    }
    found.filter(|name| !name.is_empty())
}

/// The last moment at which the certificate is valid. None if it is malformed.
pub(super) fn valid_until(certificate: &[u8]) -> Option<SystemTime> {
    let mut validity = fields(certificate)?.validity;
    take_any(&mut validity)?;
    let (tag, value) = take_any(&mut validity)?;
    let digits = value.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let number = |part: &[u8]| part.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = number(&digits[..2]);
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let part = |index: usize| number(&rest[2 * index..2 * index + 2]);
    let days = days_since_1970(year, part(0), part(1))?;
    let seconds = days * 86_400 + part(2) * 3_600 + part(3) * 60 + part(4);
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// None for dates before 1970, and for months that do not exist.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let month = usize::try_from(month).ok()?.checked_sub(1).filter(|month| *month < 12)?;
    let divides = |number: u64| year.is_multiple_of(number);
    let is_leap = divides(4) && (!divides(100) || divides(400));
    // The leap days in all years before this one.
    let leap_days = |year: u64| (year - 1) / 4 - (year - 1) / 100 + (year - 1) / 400;
    let years = year.checked_sub(1970)?;
    let in_year: u64 = lengths[..month].iter().sum::<u64>() + u64::from(is_leap && month > 1);
    Some(years * 365 + leap_days(year) - leap_days(1970) + in_year + day.checked_sub(1)?)
}

/// The encoded name of the issuer of a revocation list. None if it is malformed.
pub(super) fn crl_issuer(list: &[u8]) -> Option<&[u8]> {
    let mut rest = list;
    let mut signed = take(&mut rest, SEQUENCE)?;
    let mut body = take(&mut signed, SEQUENCE)?;
    if body.first() == Some(&INTEGER) {
        take(&mut body, INTEGER)?; // version
    }
    take(&mut body, SEQUENCE)?; // signature algorithm
    take(&mut body, SEQUENCE)
}

struct CertificateFields<'a> {
    validity: &'a [u8],
    subject: &'a [u8],
}

fn fields(certificate: &[u8]) -> Option<CertificateFields<'_>> {
    let mut rest = certificate;
    let mut signed = take(&mut rest, SEQUENCE)?;
    let mut body = take(&mut signed, SEQUENCE)?;
    if body.first() == Some(&VERSION) {
        take(&mut body, VERSION)?;
    }
    take(&mut body, INTEGER)?; // serial number
    take(&mut body, SEQUENCE)?; // signature algorithm
    take(&mut body, SEQUENCE)?; // issuer
    let validity = take(&mut body, SEQUENCE)?;
    let subject = take(&mut body, SEQUENCE)?;
    Some(CertificateFields { validity, subject })
}

fn text(tag: u8, value: &[u8]) -> Option<String> {
    match tag {
        UTF8_STRING | PRINTABLE_STRING | IA5_STRING | TELETEX_STRING => {
            String::from_utf8(value.to_vec()).ok()
        }
        _ => None,
    }
}

/// Removes the value with this tag from the front.
fn take<'a>(rest: &mut &'a [u8], expected: u8) -> Option<&'a [u8]> {
    let (tag, value) = take_any(rest)?;
    (tag == expected).then_some(value)
}

fn take_any<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let [tag, length, tail @ ..] = *rest else { return None };
    let (length, tail) = match length {
        ..=0x7f => (usize::from(*length), tail),
        // The number of bytes of the length.
        0x81..=0x84 => {
            let (bytes, tail) = tail.split_at_checked(usize::from(length & 0x7f))?;
            (bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), tail)
        }
        _ => return None,
    };
    let (value, tail) = tail.split_at_checked(length)?;
    *rest = tail;
    Some((*tag, value))
}

const INTEGER: u8 = 0x02;
const OBJECT_ID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const TELETEX_STRING: u8 = 0x14;
const IA5_STRING: u8 = 0x16;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// The optional version of a certificate: context-specific, constructed, number 0.
const VERSION: u8 = 0xa0;
/// id-at-commonName: 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(name: Option<&str>, year: i32) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec!["host".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "org");
        if let Some(name) = name {
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
        }
        params.not_after = rcgen::date_time_ymd(year, 3, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_common_name_is_found() {
        assert_eq!(common_name(&certificate(Some("alice"), 2030)), Some("alice".into()));
        assert_eq!(common_name(&certificate(Some("\u{e4}"), 2030)), Some("\u{e4}".into()));
        assert_eq!(common_name(&certificate(Some(""), 2030)), None);
        assert_eq!(common_name(&certificate(None, 2030)), None);
    }

    #[test]
    fn the_end_of_the_validity_is_found() {
        let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(valid_until(&certificate(None, 2024)), at(1_709_251_200));
        assert_eq!(valid_until(&certificate(None, 2026)), at(1_772_323_200));
        assert_eq!(valid_until(&certificate(None, 2100)), at(4_107_542_400));
        assert_eq!(days_since_1970(1970, 1, 1), Some(0));
        assert_eq!(days_since_1970(1969, 12, 31), None);
        assert_eq!(days_since_1970(2000, 13, 1), None);
    }

    #[test]
    fn every_truncated_or_changed_certificate_is_read_without_panic() {
        let intact = certificate(Some("alice"), 2030);
        for length in 0..intact.len() {
            common_name(&intact[..length]);
            valid_until(&intact[..length]);
        }
        for position in 0..intact.len() {
            for value in [0, 0x30, 0x7f, 0x80, 0x84, 0xff] {
                let mut changed = intact.clone();
                changed[position] = value;
                common_name(&changed);
                valid_until(&changed);
            }
        }
    }
}
