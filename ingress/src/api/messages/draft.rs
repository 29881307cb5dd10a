//! The body of a message request, and its validation.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use schemas::{Address, Classification, MessageKind, messages::MailOptions};
use serde::Deserialize;
use uuid::Uuid;

use super::attachment::{
    self, ATTACHMENTS_MAX, NewAttachment, Upload, ValidAttachment,
    calendar::{self, CalendarInvite},
};
use crate::{
    api::mail_options::{
        COPIES_MAX, CopyRecipient, CustomHeaders, HEADERS_MAX, METADATA_MAX, MailMetadata, OptionFields, TAG_MAX,
        TAGS_MAX, named_recipient, recipients,
    },
    pipeline::{
        Faults, Id,
        error::ApiError,
        types::{Email, Line, Name, Words},
        validate::{LINE_MAX, NAME_MAX},
    },
};

/// Most recipients of one message.
pub(super) const RECIPIENTS_MAX: usize = 50;
/// Longest HTML or text body, in bytes.
pub(super) const BODY_MAX_BYTES: usize = 512 * 1024;
/// The classes there are; only the first is sent from here.
pub(super) const CLASSES: [&str; 2] = ["business", "marketing"];

/// The body of the request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SendMessage {
    #[schemars(with = "Id")]
    sender_id: Option<Id>,
    /// An address that is given twice gets one mail.
    #[schemars(with = "Vec<MessageRecipient>", length(min = 1, max = RECIPIENTS_MAX))]
    to: Option<Vec<MessageRecipient>>,
    #[schemars(with = "Name<LINE_MAX>")]
    subject: Option<String>,
    #[schemars(with = "Words<BODY_MAX_BYTES>")]
    html: Option<String>,
    /// Derived from the HTML when there is none.
    #[schemars(length(max = BODY_MAX_BYTES))]
    text: Option<String>,
    /// Default: the sender's.
    #[schemars(with = "Option<Email>")]
    reply_to: Option<String>,
    /// The display name in From. Default: the sender's.
    #[schemars(with = "Option<Name<NAME_MAX>>")]
    from_name: Option<String>,
    /// Header fields of this mail: `X-` fields, Auto-Submitted, Importance, In-Reply-To, Organization, Priority, References.
    #[schemars(with = "Option<CustomHeaders<HEADERS_MAX>>")]
    headers: Option<BTreeMap<String, String>>,
    /// Come back in events and in the sends.
    #[schemars(with = "Option<Vec<Name<TAG_MAX>>>", length(max = TAGS_MAX))]
    tags: Option<Vec<String>>,
    /// Comes back in events and in the sends.
    #[schemars(with = "Option<MailMetadata<METADATA_MAX>>")]
    metadata: Option<BTreeMap<String, String>>,
    /// Recipients of copies that the others see. Each address gets one mail; with `bcc` at most 49. Only with one recipient in `to`.
    #[schemars(length(max = COPIES_MAX))]
    cc: Option<Vec<CopyRecipient>>,
    /// Recipients of copies that nobody else sees.
    #[schemars(length(max = COPIES_MAX))]
    bcc: Option<Vec<CopyRecipient>>,
    /// When to send it: up to 30 days ahead. `DELETE /v1/sends/{id}` with the id of any of its sends cancels the message until then.
    #[schemars(extend("format" = "date-time"))]
    scheduled_at: Option<String>,
    /// Filled into the contacts that have none.
    #[schemars(range(min = 1))]
    dot_number: Option<i64>,
    #[schemars(with = "String", extend("enum" = CLASSES))]
    message_class: Option<String>,
    /// At most 15 MB together, decoded.
    #[schemars(length(max = ATTACHMENTS_MAX))]
    attachments: Option<Vec<NewAttachment>>,
    /// An invite that the recipient's mail program shows with its answers, and attached as `invite.ics`.
    calendar: Option<CalendarInvite>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MessageRecipient {
    #[schemars(with = "Email")]
    email: Option<String>,
    /// For the To header.
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    name: Option<String>,
}

/// A validated recipient of the message.
#[derive(Debug, Clone)]
pub(crate) struct ParsedRecipient {
    pub(crate) address: Address,
    pub(crate) name: Option<String>,
}

/// A message that may be accepted.
#[derive(Debug)]
pub(crate) struct MessageDraft {
    pub(crate) sender_id: Uuid,
    /// Each address once, in the order given; those of copies last.
    pub(crate) recipients: Vec<ParsedRecipient>,
    pub(crate) subject: String,
    pub(crate) html: String,
    pub(crate) text: Option<String>,
    pub(crate) reply_to: Option<Address>,
    pub(crate) dot_number: Option<i64>,
    pub(crate) options: Option<MailOptions>,
    pub(crate) kind: MessageKind,
    /// Of a test: the contact whose mail it shows.
    pub(crate) rendered_for: Option<Uuid>,
    /// Decides which opt-outs apply.
    pub(crate) classification: Classification,
}

impl MessageDraft {
    /// When it is due, if later.
    pub(super) fn due_at(&self) -> Option<DateTime<Utc>> {
        self.options.as_ref().and_then(|options| options.scheduled_at)
    }
}

/// Checks everything that needs neither the database nor a look into the attachments.
///
/// # Errors
/// 400 with every fault, 413 `attachments_too_large`, 422 `use_campaigns_for_marketing`.
pub(super) fn read(body: SendMessage) -> Result<(MessageDraft, Vec<Upload>, Option<ValidAttachment>), ApiError> {
    let mut faults = Faults::default();
    let sender_id = faults.required("sender_id", body.sender_id);
    let words = ("recipient", "recipients");
    let mut recipients =
        recipients(&mut faults, body.to, RECIPIENTS_MAX, words, |faults, path, one: MessageRecipient| {
            named_recipient(faults, path, one.email, one.name)
        });
    let subject = faults.not_blank("subject", body.subject);
    faults.one_line("subject", &subject, LINE_MAX);
    let html = faults.not_blank("html", body.html);
    faults.bytes("html", &html, BODY_MAX_BYTES);
    let text = body.text.filter(|text| !text.trim().is_empty());
    faults.bytes("text", text.as_deref().unwrap_or_default(), BODY_MAX_BYTES);
    let reply_to = body.reply_to.and_then(|text| faults.sender_address("reply_to", &text));
    let options = OptionFields {
        from_name: body.from_name,
        headers: body.headers,
        tags: body.tags,
        metadata: body.metadata,
        cc: body.cc,
        bcc: body.bcc,
        scheduled_at: body.scheduled_at,
        ..OptionFields::default()
    };
    let options = options.validate(&mut faults, recipients.first().map(|to| &to.address));
    if let Some(options) = options.as_ref().filter(|options| !options.copies.is_empty()) {
        faults.require(recipients.len() == 1, "to", "too_many", "must name one recipient when there are copies");
        let copies = options.copies.iter().cloned();
        recipients.extend(copies.map(|copy| ParsedRecipient { address: copy.address, name: copy.name }));
    }
    let positive = body.dot_number.is_none_or(|number| number > 0);
    faults.require(positive, "dot_number", "out_of_range", "must be greater than 0");
    let class = faults.required("message_class", body.message_class).unwrap_or_default();
    if !class.is_empty() {
        faults.one_of("message_class", &class, &CLASSES);
    }
    let uploads = attachment::uploads(&mut faults, body.attachments.unwrap_or_default())?;
    let invite = body.calendar.and_then(|invite| calendar::check(&mut faults, invite));
    faults.finish()?;
    if class != CLASSES[0] {
        return Err(ApiError::unprocessable("use_campaigns_for_marketing")
            .detail("marketing mail needs consent, a footer and a way out: send it as a campaign"));
    }
    let sender_id = sender_id.ok_or_else(ApiError::internal)?.0;
    let draft = MessageDraft {
        sender_id,
        recipients,
        subject,
        html,
        text,
        reply_to,
        dot_number: body.dot_number,
        options,
        kind: MessageKind::OneOff,
        rendered_for: None,
        // One-off messages are operational mail.
        classification: Classification::Operational,
    };
    Ok((draft, uploads, invite))
}
