//! DKIM signatures (RFC 6376, RFC 8463): relaxed/relaxed, SHA-256, RSA-2048 or Ed25519, by aws-lc-rs.
//!
//! Our own and not mail-auth's signer, which costs the same (20 KB, RSA and Ed25519 together: 304 µs of CPU, here 306): it signs
//! every field of its list that a message lacks as absent. A list server that adds `List-Id` or `Sender` would break the
//! signature, so each message would need a list and a signer of its own. And its verifier, which judges ours in the tests,
//! would judge itself.

mod canonical;
mod key;
mod sign;
mod threads;

pub use key::{DkimKey, GeneratedKey, KeyError};
pub use sign::DkimSigner;
pub use threads::SigningThreads;
