//! The data a message is rendered from, and where its tracked addresses come from.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};
use uuid::Uuid;

/// The recipient as templates see them. Absent and empty values are the same to a template: they print as nothing,
/// are false in `if`, and `default` replaces them.
#[derive(Debug, Clone, Default)]
pub struct Contact {
    /// The address as the recipient writes it.
    pub email: String,
    /// Given name.
    pub first_name: Option<String>,
    /// Family name.
    pub last_name: Option<String>,
    /// Job title or form of address.
    pub title: Option<String>,
    /// Telephone number.
    pub phone: Option<String>,
    /// Company name.
    pub company: Option<String>,
    /// IANA time zone name.
    pub timezone: Option<String>,
    /// BCP 47 language tag.
    pub locale: Option<String>,
    /// Where the contact stands with the tenant.
    pub lifecycle_stage: Option<String>,
    /// US DOT number.
    pub dot_number: Option<String>,
    /// The tenant's own fields, by key.
    pub fields: Map<String, Value>,
}

/// One recipient's data.
#[derive(Debug, Clone)]
pub struct MergeData {
    /// The send: part of the Message-ID, and in the `X-Postrider-Send` header.
    pub send_id: Uuid,
    /// The Date header.
    pub date: DateTime<Utc>,
    /// The recipient.
    pub contact: Contact,
    /// The `data` object of a transactional request; `Null` otherwise.
    pub data: Value,
}

/// Makes a recipient's own addresses. Each is called at most a few times a message and must be pure: the same answer
/// for the same question. Answers are absolute URLs without spaces; they are escaped for where they are put.
pub trait Links {
    /// The tracked form of a link. `link_no` counts the links of the template from 0; `url` is where it leads.
    fn click(&self, link_no: u16, url: &str) -> String;
    /// The address of the open pixel.
    fn open_pixel(&self) -> String;
    /// The one-click unsubscribe address (RFC 8058: the same for the page and for the POST).
    fn unsubscribe(&self) -> String;
    /// The recipient's preferences page.
    fn preferences(&self) -> String;
}
