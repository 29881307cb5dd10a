//! `POST /v1/transactional`: one template to one person. 202 means that it is stored; it is on its way a moment later.

pub(crate) mod array;

use std::{collections::BTreeMap, sync::Arc};

use http::StatusCode;
use ledger::resolve::transactional::{MailRequest, accept};
use runtime::trace;
use schemars::JsonSchema;
use schemas::{
    Address, DomainStatus, RequestAnnounced, RequestKind,
    action::CONTACT_TEXT_MAX_CHARS,
    messages::{ContactDetails, MailOptions, TransactionalPayload},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    contacts::{ContactNames, EXTERNAL_ID_MAX_CHARS, NamedContact, check_details, named},
    mail_options::{
        COPIES_MAX, CopyRecipient, CustomHeaders, HEADERS_MAX, METADATA_MAX, MailMetadata, MailTracking, OptionFields,
        TAG_MAX, TAGS_MAX,
    },
    messages::{
        attachment::{
            self, ATTACHMENTS_MAX, Inspection, NewAttachment, Upload, ValidAttachment,
            calendar::{self, CalendarInvite},
        },
        store::insert_attachments,
    },
    senders::store::Readiness,
    templates::merge,
};
use crate::{
    pipeline::{
        ApiReply, Doc, Faults, Id, PreparationContext, RequestContext, Routes,
        doc::ID,
        error::ApiError,
        types::{Email, Line, Name},
        validate::NAME_MAX,
        write_with_files,
    },
    state::Ingress,
};

/// The request's line, which its idempotency key is bound to.
pub(crate) const METHOD: &str = "POST";
pub(crate) const PATH: &str = "/v1/transactional";
/// What it is answered with.
const ACCEPTED: StatusCode = StatusCode::ACCEPTED;

pub(crate) fn routes() -> Routes {
    let (batch, batch_doc) = array::batch_endpoint();
    Routes::new().post(array::BATCH_PATH, batch, batch_doc).post(
        PATH,
        write_with_files("email:send_one:create", |context, body| Box::pin(prepare(context, body)), send),
        Doc::new(
            "sendTransactional",
            "Send one template to one person",
            "202 means that it is stored; `GET /v1/sends/{send_id}` follows it. The contact is found or created \
                 by address, or is known by `external_id` or `contact_id`. A template of type marketing or sequence makes the mail marketing: it carries the \
                 footer, and unsubscribed recipients are not mailed. `from_name`, `reply_to`, `headers` and `tracking` hold \
                 for this mail alone; `tags` and `metadata` come back in every event about it and in the send. \
                 Each `cc` and `bcc` recipient gets the same mail as a send of its own, untracked: a suppressed one is \
                 left out, and `copies` of the send tells so.",
        )
        .example(json!({"template_id": ID, "email": "ann@example.com", "data": {"total": "12.50"}, "tags": ["receipt"], "metadata": {"order": "1042"}}))
        .answer::<TransactionalAccepted>(202, "Accepted")
        .leads_to("send_id", &["getSend"])
        .refuses(413, &["attachments_too_large"])
        .refuses(429, &["message_rate_exceeded"])
        .refuses(404, &["template_not_found", "sender_profile_not_found", "contact_not_found"])
        .refuses(422, &["sender_required", "sender_missing_verified_domain"]),
    )
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SendTransactional {
    #[schemars(with = "Id")]
    template_id: Option<Id>,
    /// One of email, external_id and contact_id names the recipient.
    #[schemars(with = "Option<Email>")]
    email: Option<String>,
    /// Instead of email: the contact's id in the product. The contact must be known.
    #[schemars(with = "Option<Name<EXTERNAL_ID_MAX_CHARS>>")]
    external_id: Option<String>,
    /// Instead of email. The contact must be known.
    contact_id: Option<Id>,
    /// Default: the tenant's default sender.
    sender_profile_id: Option<Id>,
    #[schemars(with = "Option<Line<CONTACT_TEXT_MAX_CHARS>>")]
    first_name: Option<String>,
    #[schemars(with = "Option<Line<CONTACT_TEXT_MAX_CHARS>>")]
    last_name: Option<String>,
    #[schemars(with = "Option<Line<CONTACT_TEXT_MAX_CHARS>>")]
    title: Option<String>,
    #[schemars(with = "Option<Line<CONTACT_TEXT_MAX_CHARS>>")]
    phone: Option<String>,
    /// The display name in From. Default: the sender's.
    #[schemars(with = "Option<Name<NAME_MAX>>")]
    from_name: Option<String>,
    /// Default: the sender's.
    #[schemars(with = "Option<Email>")]
    reply_to: Option<String>,
    /// Header fields of this mail: `X-` fields, Auto-Submitted, Importance, In-Reply-To, Organization, Priority, References.
    #[schemars(with = "Option<CustomHeaders<HEADERS_MAX>>")]
    headers: Option<BTreeMap<String, String>>,
    /// Come back in events and in the send.
    #[schemars(with = "Option<Vec<Name<TAG_MAX>>>", length(max = TAGS_MAX))]
    tags: Option<Vec<String>>,
    /// Comes back in events and in the send.
    #[schemars(with = "Option<MailMetadata<METADATA_MAX>>")]
    metadata: Option<BTreeMap<String, String>>,
    /// Whether this mail has the open pixel and tracked links.
    tracking: Option<MailTracking>,
    /// Recipients of copies that the others see. Each address gets one mail; with `bcc` at most 49.
    #[schemars(length(max = COPIES_MAX))]
    cc: Option<Vec<CopyRecipient>>,
    /// Recipients of copies that nobody else sees.
    #[schemars(length(max = COPIES_MAX))]
    bcc: Option<Vec<CopyRecipient>>,
    /// When to send it: up to 30 days ahead. `DELETE /v1/sends/{id}` cancels it until then.
    #[schemars(extend("format" = "date-time"))]
    scheduled_at: Option<String>,
    /// At most 15 MB together, decoded.
    #[schemars(length(max = ATTACHMENTS_MAX))]
    attachments: Option<Vec<NewAttachment>>,
    /// An invite that the recipient's mail program shows with its answers, and attached as `invite.ics`.
    calendar: Option<CalendarInvite>,
    /// What the template reads as `data.…`. At most 256 KB, 10,000 values and 16 levels.
    data: Option<Map<String, Value>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TransactionalAccepted {
    send_id: Uuid,
    #[schemars(extend("const" = "scheduled"))]
    status: &'static str,
}

/// A valid request; template, sender and the content of its files are not checked yet.
#[derive(Debug)]
struct ValidRequest {
    template_id: Uuid,
    contact: NamedContact,
    /// `None`: the tenant's default.
    sender_id: Option<Uuid>,
    details: ContactDetails,
    data: Map<String, Value>,
    options: Option<MailOptions>,
    /// Its files that are not looked into yet.
    uploads: Vec<Upload>,
    /// Its files that may be sent, and its invite, which is the last of them.
    attachments: Vec<ValidAttachment>,
}

#[derive(Debug)]
struct NewRequest {
    payload: TransactionalPayload,
    options: Option<MailOptions>,
    attachments: Vec<ValidAttachment>,
}

impl NewRequest {
    fn mail(&self, tenant_id: Uuid) -> MailRequest<'_> {
        MailRequest { tenant_id, payload: &self.payload, options: self.options.as_ref() }
    }
}

impl ValidRequest {
    /// Looks into its files. No connection to Postgres is held meanwhile. The caller keeps the inspection when the mail is decided.
    ///
    /// # Errors
    /// 400 for files that are not passed on, 429 beyond the hourly limit of the tenant, 503 when there is no time to look.
    async fn inspect_files(
        &mut self,
        ingress: &Ingress,
        product: &str,
        tenant: Uuid,
    ) -> Result<Option<Inspection>, ApiError> {
        let uploads = std::mem::take(&mut self.uploads);
        if uploads.is_empty() {
            return Ok(None);
        }
        let (files, inspection) = attachment::inspect(&ingress.reader, product, tenant, uploads).await?;
        let invite = std::mem::take(&mut self.attachments);
        self.attachments = files.into_iter().chain(invite).collect();
        Ok(Some(inspection))
    }

    fn into_request(mut self, send_id: Uuid, address: Address, content_id: Uuid, sender_id: Uuid) -> NewRequest {
        if let Some(options) = &mut self.options {
            // A contact that is named by an id has its address only now.
            options.copies.retain(|copy| copy.address != address);
        }
        let payload = TransactionalPayload {
            send_id,
            address,
            contact: self.details,
            template_id: self.template_id,
            content_id,
            sender_id,
            data: self.data,
        };
        NewRequest { payload, options: self.options, attachments: self.attachments }
    }
}

async fn prepare(context: PreparationContext, body: SendTransactional) -> Result<ValidRequest, ApiError> {
    let mut valid = validate(body)?;
    let inspection = valid.inspect_files(&context.ingress, &context.caller.product, context.tenant).await?;
    inspection.into_iter().for_each(Inspection::keep);
    Ok(valid)
}

async fn send(ctx: &mut RequestContext, prepared: Result<ValidRequest, ApiError>) -> Result<ApiReply, ApiError> {
    let valid = prepared?;
    let (tenant, caller) = (ctx.tenant, Arc::clone(&ctx.caller));
    let (content, sender) = find_content_and_sender(ctx.db(), tenant, &valid).await?;
    let content_id = usable(content)?;
    let sender_id = ready(sender, valid.sender_id)?;
    let address = named::hold_addresses(ctx.db(), tenant, &[&valid.contact]).await?.address(&valid.contact)?;
    let send_id = MailOptions::batch_id(valid.options.as_ref());
    let request = valid.into_request(send_id, address, content_id, sender_id);
    let batches = accept(ctx.db(), &caller.requester(tenant), &[request.mail(tenant)], true).await?;
    insert_attachments(ctx.db(), tenant, vec![(send_id, request.attachments)]).await?;
    trace::keep(ctx.db(), tenant, send_id).await?;
    ctx.commits_no_facts();
    match batches {
        Some(batches) => batches.into_iter().for_each(|batch| ctx.announce(batch)),
        None => ctx.announce_request(&RequestAnnounced::of(tenant, send_id, RequestKind::Transactional))?,
    }
    accepted(send_id)
}

/// The content that a template has now.
#[derive(Debug, Clone, Copy)]
struct TemplateContent {
    id: Uuid,
    /// True if it is a sequence's and uses `event.*`.
    uses_event: bool,
}

/// The content that the template has now, unless there is no such template or it is archived; and the sender, or without an id the tenant's
/// default, if there is one. The sender is not removed before this transaction ends.
async fn find_content_and_sender(
    db: &mut PgConnection,
    tenant: Uuid,
    request: &ValidRequest,
) -> sqlx::Result<(Option<TemplateContent>, Option<Readiness>)> {
    // The sender's id is chosen in a select of its own: row security keeps a `coalesce` out of the condition of an index.
    let row = sqlx::query!(
        r#"select t.content_id as "content_id?", s.id as "sender_id?", s.active as "active?",
                  s.domain_status as "domain_status?: DomainStatus",
                  coalesce(names_event(c.variables), false) as "uses_event!"
           from (select) one
           left join templates t on t.tenant_id = $1 and t.id = $2 and t.status <> 'archived'
           left join contents c on c.tenant_id = $1 and c.id = t.content_id and t.template_type = 'sequence'
           left join (
               select s.id, s.status = 'active' as active, d.status as domain_status
               from senders s
               join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
               where s.tenant_id = $1
                 and s.id = (select coalesce($3::uuid, (select n.id from senders n where n.tenant_id = $1 and n.is_default)))
               for key share of s
           ) s on true"#,
        tenant,
        request.template_id,
        request.sender_id,
    )
    .fetch_one(db)
    .await?;
    let sender = match (row.sender_id, row.active, row.domain_status) {
        (Some(id), Some(active), Some(domain_status)) => Some(Readiness { id, active, domain_status }),
        _ => None,
    };
    Ok((row.content_id.map(|id| TemplateContent { id, uses_event: row.uses_event }), sender))
}

fn accepted(send_id: Uuid) -> Result<ApiReply, ApiError> {
    ApiReply::new(ACCEPTED, &TransactionalAccepted { send_id, status: "scheduled" })
}

/// The content of a template, if a single mail can fill it in.
fn usable(found: Option<TemplateContent>) -> Result<Uuid, ApiError> {
    let content = found.ok_or_else(|| ApiError::not_found("template"))?;
    if content.uses_event {
        let detail = "the template uses event.*, which only the mail of a sequence has";
        return Err(ApiError::invalid("template_id", "unknown_variable", detail));
    }
    Ok(content.id)
}

/// The sender, if mail may leave in its name.
fn ready(found: Option<Readiness>, named: Option<Uuid>) -> Result<Uuid, ApiError> {
    let sender = found.ok_or_else(|| match named {
        Some(_) => ApiError::not_found("sender_profile"),
        None => ApiError::unprocessable("sender_required")
            .detail("the tenant has no default sender: name one in sender_profile_id"),
    })?;
    if !sender.may_send() {
        return Err(ApiError::unprocessable("sender_missing_verified_domain").detail(sender.why_not()));
    }
    Ok(sender.id)
}

/// A valid request, alone or of an array. Its files are looked into next.
fn validate(body: SendTransactional) -> Result<ValidRequest, ApiError> {
    let mut faults = Faults::default();
    let uploads = attachment::uploads(&mut faults, body.attachments.unwrap_or_default())?;
    let invite = body.calendar.and_then(|invite| calendar::check(&mut faults, invite));
    let template_id = faults.required("template_id", body.template_id);
    let names = ContactNames { contact_id: body.contact_id, email: body.email, external_id: body.external_id };
    let contact = names.check("", &mut faults);
    let details =
        ContactDetails { first_name: body.first_name, last_name: body.last_name, title: body.title, phone: body.phone };
    let details = check_details(details, &mut faults);
    let options = OptionFields {
        from_name: body.from_name,
        reply_to: body.reply_to,
        headers: body.headers,
        tags: body.tags,
        metadata: body.metadata,
        tracking: body.tracking,
        cc: body.cc,
        bcc: body.bcc,
        scheduled_at: body.scheduled_at,
    };
    let to = match &contact {
        Some(NamedContact::Address(address)) => Some(address),
        _ => None,
    };
    let mut options = options.validate(&mut faults, to);
    if !uploads.is_empty() || invite.is_some() {
        options.get_or_insert_default().has_attachments = true;
    }
    merge::check_data("data", body.data.as_ref(), &mut faults);
    faults.finish()?;
    Ok(ValidRequest {
        template_id: template_id.ok_or_else(ApiError::internal)?.0,
        contact: contact.ok_or_else(ApiError::internal)?,
        sender_id: body.sender_profile_id.map(|id| id.0),
        details,
        data: body.data.unwrap_or_default(),
        options,
        uploads,
        attachments: invite.into_iter().collect(),
    })
}
