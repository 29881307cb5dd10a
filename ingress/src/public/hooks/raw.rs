//! A request's body: its beginning, and what all of it hashes to.
//!
//! Mail that a provider took in comes with its attachments, and they are not needed: its header names the message it answers. So such
//! a body may be long, and only its first megabyte is ever held.

use std::time::Duration;

use aws_lc_rs::digest::{Context, Digest, SHA256};
use axum::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use uuid::Uuid;

use super::check::proof::single;
use crate::pipeline::{body, error::ApiError};

/// Carries the timestamp that SendGrid signs.
pub(super) const STAMP_HEADER: &str = "x-twilio-email-event-webhook-timestamp";
/// What is kept of a body; an event has no more.
pub(super) const KEPT_MAX_BYTES: usize = 1024 * 1024;
/// The longest mail with its attachments: Postmark passes on 35 MB.
pub(super) const MAIL_MAX_BYTES: usize = 40 * 1024 * 1024;

/// A body as received.
#[derive(Debug)]
pub(super) struct RawBody {
    /// Its beginning.
    pub kept: Bytes,
    /// There was more.
    pub is_cut: bool,
    /// SHA-256 of all of it.
    pub whole: Digest,
    /// The digest of timestamp and body, as SendGrid signs them.
    pub stamped: Digest,
}

impl RawBody {
    /// Reads a body. Only one that is a mail may be longer than what is kept of it.
    ///
    /// # Errors
    /// 413 `body_too_large`, 408, 400, 503 when other bodies hold the memory.
    pub async fn read(
        provider: &str,
        connection: Uuid,
        body: Body,
        headers: &HeaderMap,
        body_timeout: Duration,
    ) -> Result<Self, ApiError> {
        // SES refers to what is long, and Resend never sends it.
        let takes_mail = matches!(provider, "postmark" | "sendgrid" | "mailgun");
        let most = if takes_mail { MAIL_MAX_BYTES } else { KEPT_MAX_BYTES };
        let (mut whole, mut stamped) = (Context::new(&SHA256), Context::new(&SHA256));
        stamped.update(single(headers, STAMP_HEADER).unwrap_or_default().as_bytes());
        let (mut kept, mut length) = (body::PublicBody::event(connection), 0_usize);
        body::read_pieces(body, headers, most, body_timeout, |data| {
            whole.update(data);
            stamped.update(data);
            length += data.len();
            kept.push(&data[..data.len().min(KEPT_MAX_BYTES - kept.len())])
        })
        .await?;
        let raw =
            Self { is_cut: length > kept.len(), kept: kept.into(), whole: whole.finish(), stamped: stamped.finish() };
        if raw.is_cut && !feedback::is_inbound_mail(provider, &raw.kept) {
            return Err(body::too_large(KEPT_MAX_BYTES));
        }
        Ok(raw)
    }

    /// What the body is known again by.
    pub fn digest(&self) -> String {
        hex::encode(self.whole.as_ref())
    }
}
