//! Sending domains: which DNS records a tenant publishes, whether they are there, and what that makes of the domain.
//!
//! Everything but [`DnsResolver`] is pure. [`records`] says what to publish; [`verify`] asks the DNS for each;
//! [`status`] turns the answers into the domain's next status.

mod answer;
mod records;
mod resolver;
mod status;
mod verify;

pub use records::{DnsRecord, DomainSettings, PublishedKey, RecordPurpose, RecordType, records};
pub use resolver::{DnsResolver, DnsSettings, ResolverError};
pub use status::status;
pub use verify::{CheckError, CheckedRecord, Validity, verify};
