//! Every answer a test receives is held against the document.

use std::sync::LazyLock;

use contract::{Contract, Exchange};
use http::{Method, Uri};

use super::Answer;

/// The document of this very build, not the file: a test of its own says that they are the same.
pub static CONTRACT: LazyLock<Contract> =
    LazyLock::new(|| Contract::new(serde_json::from_str(&ingress::contracts().openapi).unwrap()));

/// Panics when an answer is not as documented.
#[track_caller]
pub fn hold(method: &Method, uri: &Uri, sent: &[u8], answer: &Answer) {
    let exchange = Exchange {
        method: method.as_str(),
        path: uri.path(),
        sent,
        status: answer.status.as_u16(),
        content_type: answer.header("content-type"),
        received: &answer.bytes,
    };
    if let Err(fault) = CONTRACT.check(&exchange) {
        panic!("{fault}");
    }
    assert!(!answer.header("x-request-id").is_empty(), "{method} {uri} has no request id");
}
