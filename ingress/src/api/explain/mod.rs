//! `GET /v1/explain`: why a contact was mailed, was not, or would not be. Each gate in the order the engine passes them, with the
//! row that decides and since when; then the outcome of the send.

mod gates;
mod store;

use chrono::{DateTime, Utc};
use ledger::frequency::{CappedMail, OwedMail, Urgency};
use ledger::gate::{is_capped, zone_named};
use ledger::local_time::due_in;
use ledger::quota::QuotaDefaults;
use schemars::JsonSchema;
use schemas::{Address, Classification, MessageKind, SendId, SendState, receiver::Receiver};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use self::gates::{Decision, GATES, Gate};
use crate::{
    api::{
        campaigns::{rows::CampaignRow, store as campaigns},
        contacts::{ContactNames, EXTERNAL_ID_MAX_CHARS, NamedContact, named},
        enrollments::store as enrollments,
        sends::{self, SendRecord, SendRow, store as stored_sends},
        sequences::store as sequences,
    },
    pipeline::{
        ApiReply, Doc, Faults, Id, RequestContext, Routes,
        error::ApiError,
        read,
        types::{Email, Name},
    },
};

pub(crate) fn routes() -> Routes {
    Routes::new().get(
        "/v1/explain",
        read("sends:read", explain),
        Doc::new(
            "explain",
            "Explain why a contact is mailed or not",
            "Every gate in order with its decision, now or about the time when the mail is due, the deciding row and \
                 its time; then the send, if there is one. For a campaign that is not launched yet: what would happen. \
                 For a sequence: what became of the newest occurrence of its trigger, the newest enrollment, and its \
                 newest mail.",
        )
        .answer::<ExplainAnswer>(200, "The explanation")
        .refuses(
            404,
            &["campaign_not_found", "message_not_found", "sequence_not_found", "send_not_found", "contact_not_found"],
        ),
    )
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExplainQuery {
    /// One of campaign_id, message_id and sequence_id.
    campaign_id: Option<Id>,
    message_id: Option<Id>,
    sequence_id: Option<Id>,
    /// One of email, external_id and contact_id names the contact.
    #[schemars(with = "Option<Email>")]
    email: Option<String>,
    #[schemars(with = "Option<Name<EXTERNAL_ID_MAX_CHARS>>")]
    external_id: Option<String>,
    contact_id: Option<Id>,
}

/// The object that is explained.
#[derive(Debug, Clone, Copy)]
pub enum ExplainSubject {
    /// A campaign.
    Campaign(Uuid),
    /// A one-off message.
    Message(Uuid),
    /// A sequence.
    Sequence(Uuid),
    /// A transactional mail, by its send. The API does not ask about it.
    Transactional(Uuid),
}

impl ExplainQuery {
    fn validate(self) -> Result<(ExplainSubject, NamedContact), ApiError> {
        let mut faults = Faults::default();
        let abouts = [
            self.campaign_id.map(|id| ExplainSubject::Campaign(id.0)),
            self.message_id.map(|id| ExplainSubject::Message(id.0)),
            self.sequence_id.map(|id| ExplainSubject::Sequence(id.0)),
        ];
        let mut given = abouts.into_iter().flatten();
        let about = given.next();
        let one = about.is_some() && given.next().is_none();
        faults.require(one, "campaign_id", "required", "name one of campaign_id, message_id and sequence_id");
        let names = ContactNames { contact_id: self.contact_id, email: self.email, external_id: self.external_id };
        let contact = names.check("", &mut faults);
        faults.finish()?;
        about.zip(contact).ok_or_else(ApiError::internal)
    }
}

/// Why a contact is mailed or not.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Explanation {
    about: ExplainedMail,
    email: String,
    contact_id: Option<Uuid>,
    /// What would happen now, or at the time when the mail is due: the first gate that stops, or else waits.
    #[serde(rename = "verdict")]
    decision: Decision,
    #[schemars(extend("enum" = GATES))]
    decided_by: Option<&'static str>,
    /// Of an A/B test; null in the remainder.
    #[schemars(extend("enum" = ledger::audience::VARIANT_NAMES))]
    variant: Option<String>,
    gates: Vec<Gate>,
    /// The send, if there is one. Its outcome is from before, and counts before what the gates decide now.
    send: Option<SendRecord>,
}

/// The campaign, one-off message or sequence that is asked about.
#[derive(Debug, Serialize, JsonSchema)]
struct ExplainedMail {
    // `send` for a transactional mail, which the API does not answer.
    #[schemars(extend("enum" = ["campaign", "message", "sequence"]))]
    kind: &'static str,
    id: Uuid,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ExplainAnswer {
    explanation: Explanation,
}

async fn explain(ctx: &mut RequestContext, query: ExplainQuery) -> Result<ApiReply, ApiError> {
    let (about, contact) = query.validate()?;
    let (tenant, quota) = (ctx.tenant, ctx.ingress.settings.quota);
    let address = named::address(ctx.db(), tenant, &contact).await?;
    let explanation = Explainer { db: ctx.db(), tenant, quota }.explain(about, &address).await?;
    ApiReply::ok(&ExplainAnswer { explanation })
}

/// Explains for the API's caller, or for an operator of the command line.
#[derive(Debug)]
pub struct Explainer<'a> {
    /// Sees the tenant, at least.
    pub db: &'a mut PgConnection,
    /// The tenant of the mail.
    pub tenant: Uuid,
    /// The limits of tenants for which none is set.
    pub quota: QuotaDefaults,
}

impl Explainer<'_> {
    /// Every gate in order with its decision now, and the outcome of the send, if there is one.
    ///
    /// # Errors
    /// 404 for what is not the tenant's.
    pub async fn explain(&mut self, about: ExplainSubject, address: &Address) -> Result<Explanation, ApiError> {
        match about {
            ExplainSubject::Campaign(id) => campaign(self, id, address).await,
            ExplainSubject::Message(id) => message(self, id, address).await,
            ExplainSubject::Sequence(id) => sequence(self, id, address).await,
            ExplainSubject::Transactional(id) => transactional(self, id, address).await,
        }
    }

    /// The outcome of one send.
    ///
    /// # Errors
    /// 404 for what is not the tenant's.
    pub async fn send(&mut self, id: Uuid) -> Result<Value, ApiError> {
        Ok(json!(sends::find_send(self.db, self.tenant, id).await?))
    }
}

async fn campaign(explainer: &mut Explainer<'_>, id: Uuid, address: &Address) -> Result<Explanation, ApiError> {
    let tenant = explainer.tenant;
    let row = campaigns::get(explainer.db, tenant, id).await?.ok_or_else(|| ApiError::not_found("campaign"))?;
    let contact = store::contact(explainer.db, tenant, address.as_str()).await?;
    let month = stored_sends::campaign_month(explainer.db, tenant, id).await?.flatten();
    if let Some(month) = month
        && stored_sends::is_dropped(explainer.db, month).await?
    {
        return Err(ApiError::not_found("send").detail("the month of this campaign's mail is not kept any more"));
    }
    let send = match (&contact, month) {
        (Some(contact), Some(month)) => stored_sends::to_contact(explainer.db, tenant, month, id, contact.id).await?,
        _ => None,
    };
    let part = match &contact {
        Some(contact) if !row.variants.is_empty() => {
            row.split().parts(explainer.db, id, &[contact.id]).await?.remove(&contact.id)
        }
        _ => None,
    };
    let variant = part.and_then(|part| row.split().variant_name(part));
    let is_remainder = part.is_some() && variant.is_none();
    let due_at = due_at(explainer, &row, contact.as_ref(), is_remainder).await?;
    let mut gates = Vec::new();
    match &contact {
        None => gates.push(gates::no_contact()),
        Some(contact) => {
            let is_member = send.is_some() || is_member(explainer, &row, contact.id, month.is_some()).await?;
            gates.push(gates::audience(&row, is_member, month.is_some()));
            let mail = (MessageKind::Campaign, row.classification, Urgency::from_column(Some(&row.urgency)));
            let left_topic = ledger::gate::left_topic(explainer.db, tenant, id, contact.id).await?;
            gates.extend(recipient_gates(explainer, contact, left_topic, address, mail, due_at).await?);
        }
    }
    let sender = row.sender_profile_id;
    gates.extend(sender_gates(explainer, sender, MessageKind::Campaign, address, send.as_ref(), due_at).await?);
    gates.push(gates::window(&row, due_at, &gates));
    gates.push(gates::campaign(&row));
    let variant = part.and_then(|_| send.as_ref()?.variant.clone()).or(variant.map(str::to_owned));
    let about = ExplainedMail { kind: "campaign", id };
    Ok(Explanation { variant, ..explanation(explainer, about, address, contact.as_ref(), gates, send).await? })
}

/// When the mail of a campaign is due where the contact is, from now on. The remainder of a test waits for its decision.
async fn due_at(
    explainer: &mut Explainer<'_>,
    row: &CampaignRow,
    contact: Option<&store::ContactRow>,
    is_remainder: bool,
) -> sqlx::Result<DateTime<Utc>> {
    let now = Utc::now();
    let start = row.launched_at.or(*row.scheduled_for).unwrap_or(now);
    let decided = row.remainder_due(start).filter(|_| is_remainder);
    if let Some(decided) = decided {
        return Ok(decided.max(now));
    }
    let Some(local) = row.scheduled_for_local else { return Ok(start.max(now)) };
    let zone = match zone_named(contact.and_then(|contact| contact.timezone.as_deref())) {
        Some(zone) => zone,
        None => campaigns::tenant_zone(explainer.db, explainer.tenant).await?,
    };
    Ok(due_in(local, zone, start).max(now))
}

async fn message(explainer: &mut Explainer<'_>, id: Uuid, address: &Address) -> Result<Explanation, ApiError> {
    let tenant = explainer.tenant;
    let message = store::message(explainer.db, tenant, id).await?.ok_or_else(|| ApiError::not_found("message"))?;
    let kind = if message.is_test { MessageKind::Test } else { MessageKind::OneOff };
    let contact = store::contact(explainer.db, tenant, address.as_str()).await?;
    let send_id = match &contact {
        Some(contact) => store::recipient(explainer.db, tenant, id, contact.id).await?,
        None => None,
    };
    let send = match send_id {
        Some(send) => stored_sends::get(explainer.db, tenant, send).await?,
        None => None,
    };
    let mut gates = vec![match &contact {
        None => gates::no_contact(),
        Some(_) => gates::recipient(id, send_id.is_some(), message.created_at),
    }];
    let due_at = message.due_at.max(Utc::now());
    if let Some(contact) = &contact {
        let mail = (kind, message.classification, Urgency::Normal);
        gates.extend(recipient_gates(explainer, contact, None, address, mail, due_at).await?);
    }
    gates.extend(sender_gates(explainer, message.sender_id, kind, address, send.as_ref(), due_at).await?);
    gates.push(gates::message("message", id, message.due_at, message.rejected.as_deref(), Utc::now()));
    explanation(explainer, ExplainedMail { kind: "message", id }, address, contact.as_ref(), gates, send).await
}

/// A transactional mail has no audience, and before its request is resolved it may have no contact.
async fn transactional(explainer: &mut Explainer<'_>, id: Uuid, address: &Address) -> Result<Explanation, ApiError> {
    let tenant = explainer.tenant;
    let send = sends::find_send(explainer.db, tenant, id).await?;
    let (kind, classification) = (send.row.message_kind, send.email_type);
    let (scheduled_at, now) = (send.scheduled_at.unwrap_or(*send.row.created_at), Utc::now());
    let due_at = scheduled_at.max(now);
    let contact = store::contact(explainer.db, tenant, address.as_str()).await?;
    let mut gates = match &contact {
        Some(contact) => {
            let mail = (kind, classification, Urgency::Normal);
            recipient_gates(explainer, contact, None, address, mail, due_at).await?
        }
        None => {
            let suppressions = store::suppressions(explainer.db, tenant, address.as_str(), due_at).await?;
            let by_name = store::is_suppressed_by_name(explainer.db, tenant, address.as_str()).await?;
            gates::suppressions(&suppressions, by_name, classification)
        }
    };
    if let Some(sender) = send.sender_id {
        gates.extend(sender_gates(explainer, sender, kind, address, Some(&send.row), due_at).await?);
    }
    let rejected = match send.row.state {
        SendState::Cancelled => Some("cancelled"),
        SendState::Failed => send.row.failure_reason.as_deref(),
        _ => None,
    };
    gates.push(gates::message("send", id, scheduled_at, rejected, now));
    let about = ExplainedMail { kind: "send", id };
    // The command shows the send itself.
    explanation(explainer, about, address, contact.as_ref(), gates, None).await
}

/// The newest enrollment decides, one that is under way before others; what is shown as the send is its newest mail. By the address of a
/// merged contact it is that of the contact that goes on, as by its other names.
async fn sequence(explainer: &mut Explainer<'_>, id: Uuid, address: &Address) -> Result<Explanation, ApiError> {
    let tenant = explainer.tenant;
    let row = sequences::get(explainer.db, tenant, id).await?;
    let address = &named::surviving_address(explainer.db, tenant, address).await?;
    let now = Utc::now();
    let contact = store::contact(explainer.db, tenant, address.as_str()).await?;
    let newest = match &contact {
        Some(contact) => enrollments::newest(explainer.db, tenant, id, contact.id).await?,
        None => None,
    };
    let (enrollment, send) = match newest {
        Some(newest) => {
            let mail = enrollments::newest_send(explainer.db, tenant, newest).await?;
            let send = match mail {
                Some(mail) => stored_sends::get(explainer.db, tenant, mail).await?,
                None => None,
            };
            (enrollments::get(explainer.db, tenant, newest).await?, send)
        }
        None => (None, None),
    };
    let mut gates = Vec::new();
    match &contact {
        None => gates.push(gates::no_contact()),
        Some(contact) => {
            let newest = store::newest_occurrence(explainer.db, tenant, id, contact.id).await?;
            gates.extend(newest.as_ref().map(|newest| gates::trigger(newest, enrollment.as_ref())));
            gates.push(gates::enrollment(enrollment.as_ref()));
            let mail = (MessageKind::Sequence, Classification::Marketing, Urgency::SEQUENCE);
            gates.extend(recipient_gates(explainer, contact, None, address, mail, now).await?);
        }
    }
    if let Some(sender) = row.sender_profile_id {
        gates.extend(sender_gates(explainer, sender, MessageKind::Sequence, address, send.as_ref(), now).await?);
    }
    gates.push(gates::sequence(&row));
    explanation(explainer, ExplainedMail { kind: "sequence", id }, address, contact.as_ref(), gates, send).await
}

/// Whether a contact without a send is in the audience of a campaign: that of its launch, if it is pinned; else, as long as it was not
/// looked up, the current one. A list is pinned with members that were archived before: until its range is written, they are shown as in
/// it.
async fn is_member(
    explainer: &mut Explainer<'_>,
    row: &CampaignRow,
    contact: Uuid,
    is_looked_up: bool,
) -> Result<bool, ApiError> {
    let tenant = explainer.tenant;
    let pinned = ledger::audience::pinned_includes(explainer.db, tenant, row.id, contact).await?;
    let (None, false, Some(selector)) = (pinned, is_looked_up, row.selector()) else {
        return Ok(pinned == Some(true));
    };
    let found = ledger::audience::includes(explainer.db, tenant, &selector, contact).await;
    Ok(found.map_err(sqlx::Error::from)?)
}

/// The gates of a recipient, about the time when the mail is due.
async fn recipient_gates(
    explainer: &mut Explainer<'_>,
    contact: &store::ContactRow,
    left_topic: Option<(Uuid, DateTime<Utc>)>,
    address: &Address,
    (kind, classification, urgency): (MessageKind, Classification, Urgency),
    due_at: DateTime<Utc>,
) -> Result<Vec<Gate>, ApiError> {
    let tenant = explainer.tenant;
    let suppressions = store::suppressions(explainer.db, tenant, address.as_str(), due_at).await?;
    let mut gates = vec![gates::contact(contact, kind, classification)];
    gates.extend(gates::suppressions(&suppressions, contact.suppressed_by_name, classification));
    gates.push(gates::consent(contact, left_topic, kind, classification));
    let usage = ledger::frequency::load_usage(explainer.db, tenant, contact.id).await?;
    let usage = usage.filter(|_| is_capped(kind, classification));
    let mail = usage.map(|usage| CappedMail {
        tenant_id: tenant,
        contact_id: contact.id,
        urgency,
        cap_left: Some(usage.left()),
    });
    let owed = OwedMail::load(explainer.db, mail).await?;
    gates.push(gates::frequency(usage.as_ref(), kind, owed.more_urgent(contact.id, urgency), due_at));
    let rule = ledger::gate::load_rule(explainer.db, tenant, (kind, classification)).await?;
    gates.push(gates::quiet_hours(rule, contact.timezone.as_deref(), due_at));
    Ok(gates)
}

/// The gates of a sender, and of what its domain sends to the receiver of an address, about the time when the mail is due.
async fn sender_gates(
    explainer: &mut Explainer<'_>,
    sender: Uuid,
    kind: MessageKind,
    address: &Address,
    send: Option<&SendRow>,
    due_at: DateTime<Utc>,
) -> Result<Vec<Gate>, ApiError> {
    let (tenant, defaults) = (explainer.tenant, explainer.quota);
    let row = store::sender(explainer.db, tenant, sender).await?;
    let left = ledger::quota::quota_usage(explainer.db, tenant, &defaults).await?.left_at(due_at);
    let mut gates =
        vec![gates::tenant(tenant, &row), gates::sender(sender, &row), gates::domain(&row), gates::quota(&left, kind)];
    if kind == MessageKind::Campaign {
        let warmup = ledger::warmup::load_state(explainer.db, tenant, row.domain_id).await?;
        gates.push(gates::warmup(row.domain_id, warmup.as_ref(), due_at));
    }
    let receiver = Receiver::of(address.domain());
    let is_slowed = store::is_slowed(explainer.db, tenant, &row.domain, &receiver.name).await?;
    let held = match send.filter(|send| matches!(send.state, SendState::Queued | SendState::Deferred)) {
        Some(send) => store::held_batch(explainer.db, tenant, SendId(send.send_id).batch()).await?,
        None => None,
    };
    gates.push(gates::pace(send, held, is_slowed));
    Ok(gates)
}

/// What follows from the gates, with the send and its events, if there is one.
async fn explanation(
    explainer: &mut Explainer<'_>,
    about: ExplainedMail,
    address: &Address,
    contact: Option<&store::ContactRow>,
    gates: Vec<Gate>,
    send: Option<SendRow>,
) -> Result<Explanation, ApiError> {
    let first = |decision| gates.iter().find(|gate| gate.decision == decision).map(|gate| gate.gate);
    let (decision, decided_by) = match (first(Decision::Stop), first(Decision::Wait)) {
        (Some(gate), _) => (Decision::Stop, Some(gate)),
        (None, Some(gate)) => (Decision::Wait, Some(gate)),
        (None, None) => (Decision::Pass, None),
    };
    let send = match send {
        Some(row) => {
            let events = stored_sends::events(explainer.db, explainer.tenant, row.send_id).await?;
            Some(SendRecord::of(row, events))
        }
        None => None,
    };
    let (email, contact_id) = (address.as_str().to_owned(), contact.map(|contact| contact.id));
    Ok(Explanation { about, email, contact_id, decision, decided_by, variant: None, gates, send })
}
