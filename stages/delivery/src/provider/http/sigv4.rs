//! AWS Signature Version 4, as much of it as one service with JSON bodies and no query needs.

use aws_lc_rs::{
    digest::{SHA256, digest},
    hmac::{self, HMAC_SHA256},
};
use chrono::{DateTime, Utc};
use secrecy::{ExposeSecret, SecretString};

/// The credentials that sign, and the region and service they sign for.
#[derive(Debug, Clone)]
pub(crate) struct Signer {
    pub access_key_id: String,
    pub secret_access_key: SecretString,
    pub session_token: Option<SecretString>,
    pub region: String,
    pub service: &'static str,
}

/// What is signed. `path` is in its canonical form, `headers` in lower case and sorted by name.
pub(crate) struct Canonical<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub query: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: &'a [u8],
}

impl Signer {
    /// The `Authorization` header.
    pub fn authorization(&self, request: &Canonical<'_>, now: DateTime<Utc>) -> String {
        let (day, time) = (now.format("%Y%m%d").to_string(), timestamp(now));
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let names = request.headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let lines: String = request.headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let canonical = format!(
            "{}\n{}\n{}\n{lines}\n{names}\n{}",
            request.method,
            request.path,
            request.query,
            hex_sha256(request.body)
        );
        let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex_sha256(canonical.as_bytes()));
        let secret = format!("AWS4{}", self.secret_access_key.expose_secret());
        let key = [day.as_str(), &self.region, self.service, "aws4_request"]
            .iter()
            .fold(secret.into_bytes(), |key, part| mac(&key, part.as_bytes()));
        let signature = hex::encode(mac(&key, to_sign.as_bytes()));
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            self.access_key_id
        )
    }
}

/// `X-Amz-Date`
pub(super) fn timestamp(now: DateTime<Utc>) -> String {
    now.format("%Y%m%dT%H%M%SZ").to_string()
}

fn hex_sha256(octets: &[u8]) -> String {
    hex::encode(digest(&SHA256, octets))
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(HMAC_SHA256, key), text).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of AWS's documentation ("Create a signed AWS API request").
    #[test]
    fn the_documentations_example_gets_the_documentations_signature() {
        let signer = Signer {
            access_key_id: "AKIDEXAMPLE".into(),
            secret_access_key: SecretString::from("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
            session_token: None,
            region: "us-east-1".into(),
            service: "iam",
        };
        let request = Canonical {
            method: "GET",
            path: "/",
            query: "Action=ListUsers&Version=2010-05-08",
            headers: &[
                ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
                ("host", "iam.amazonaws.com"),
                ("x-amz-date", "20150830T123600Z"),
            ],
            body: b"",
        };
        let now = "2015-08-30T12:36:00Z".parse().unwrap();
        assert_eq!(
            signer.authorization(&request, now),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, \
             SignedHeaders=content-type;host;x-amz-date, \
             Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
        );
    }
}
