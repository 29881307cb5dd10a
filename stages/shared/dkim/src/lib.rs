//! DKIM signatures (RFC 6376, RFC 8463): relaxed/relaxed, SHA-256, RSA-2048 or Ed25519, by aws-lc-rs.
//!
//! Our own and not mail-auth's signer: that one signs through its own key type at twice the raw cost of a signature,
//! which is what signed mail costs. Its verifier is the judge in our tests.

mod canonical;
mod key;
mod sign;
mod threads;

pub use key::{DkimKey, GeneratedKey, KeyError};
pub use sign::{DkimSigner, SignError};
pub use threads::{SigningThreads, ThreadsStopped};
