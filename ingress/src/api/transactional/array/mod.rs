//! An array of up to 500 transactional requests that an internal system publishes.
//!
//! Files are looked into first. Then it is one transaction with one statement for each step, whatever the number. Each request is validated
//! like a single one, by the same code in the same order. Valid requests are accepted, each other one is refused with its index. Those of a
//! tenant whose contacts are held, as by a merge, are left, and the array comes again for them: it keeps no other tenant's mail waiting.
//! Requests with the same content and sender become one batch: their ids say so. As for single requests on the bus, there is no rate limit,
//! and the compliance stage checks the send quota.

mod batch;
mod item;
mod keys;
mod store;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use http::StatusCode;
use ledger::resolve::transactional::accept;
use runtime::{Publication, column, plans::AccessPattern, trace};
use schemas::{
    Environment, RequestAnnounced, RequestKind, SendId, ids::PROMPT_BATCH_MAX, messages::MailOptions,
    rejected::Refusal, subjects,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use self::item::{ArrayItems, ItemState};
use super::{ACCEPTED, NewRequest, insert_attachments, ready, usable};
use crate::{
    api::contacts::named,
    pipeline::{
        IdempotencyKey, KeyClaim, Operation, announce,
        auth::keys::Caller,
        begin_write,
        error::ApiError,
        idempotency::in_progress,
        request_log::{LoggedCall, LoggedTenant, RefusalReason, RequestLog},
        request_notice,
    },
    state::Ingress,
};

pub(super) use batch::{BATCH_PATH, batch_endpoint};

/// The most requests of one array.
pub(crate) const ARRAY_MAX: usize = schemas::ids::BATCH_MAX;

/// The outcome of an array. Stored as its answer, so that a repeat gets the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ArraySummary {
    /// How many are accepted, now or before.
    pub accepted: usize,
    pub refused: Vec<RefusedItem>,
    /// The indexes of those that are left until the array comes again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<usize>,
}

impl ArraySummary {
    /// The summary of one accepted request.
    pub(crate) fn one() -> Self {
        Self { accepted: 1, ..Self::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RefusedItem {
    /// Its index, from 0.
    pub index: usize,
    pub idempotency_key: Option<String>,
    pub refusal: Refusal,
}

/// Accepts the valid requests of an array, once for each key. `operation` is that of a single one.
///
/// # Errors
/// If the array cannot be handled now: 409 while another array with the key is being handled, 422 for a key that was another request's,
/// 503 when Postgres is away, and when the requests of a tenant are left: the others are accepted.
pub(crate) async fn accept_array(
    ingress: &Arc<Ingress>,
    operation: &'static Operation,
    caller: &Arc<Caller>,
    key: &IdempotencyKey,
    bodies: Vec<Value>,
) -> Result<ArraySummary, ApiError> {
    let begun = Instant::now();
    let mut items = tokio::task::spawn_blocking(move || ArrayItems::read(bodies)).await?;
    if items.have_uploads() {
        // The hourly limit is that of the tenant.
        let mut db = ingress.pool.acquire().await?;
        store::find_tenants(&mut db, caller, &mut items).await?;
        drop(db);
        items.inspect_files(ingress, &caller.product).await?;
    }
    let mut tx = begin_write(ingress, AccessPattern::ByKey, Uuid::nil()).await?;
    let mut summary = match key.claim(tx.db(), caller.lineage, None, Duration::ZERO).await? {
        KeyClaim::Taken => ArraySummary::default(),
        KeyClaim::Answered(stored) => {
            let stored: ArraySummary =
                serde_json::from_slice(&stored.body).map_err(|error| ApiError::unexpected(&error))?;
            if stored.left.is_empty() {
                tx.rollback().await?;
                return Ok(stored);
            }
            items.keep(&stored.left);
            stored
        }
        KeyClaim::Waiting(_) => return Err(in_progress()),
    };
    let db = tx.db();
    store::find_tenants(db, caller, &mut items).await?;
    keys::claim_keys(db, caller.lineage, &mut items).await?;
    let mut announcements = Vec::new();
    let tenants = items.check_requests();
    for tenant in &tenants {
        // Of several tenants, one would hold rows while it waits for those of another.
        let at_once = tenants.len() == 1;
        announcements.extend(accept_for_tenant(db, caller, *tenant, &mut items, at_once).await?);
    }
    keys::store_answers(db, caller.lineage, &items).await?;
    summary.left = items.take_left();
    let decided = items.summary();
    summary.accepted += decided.accepted;
    summary.refused.extend(decided.refused);
    let stored = serde_json::to_vec(&summary).map_err(|error| ApiError::unexpected(&error))?;
    key.store_answer(db, caller.lineage, ACCEPTED, &stored).await?;
    tx.commit().await?;
    items.keep_inspections();
    ingress.facts.notify();
    announce(ingress, announcements);
    note_items(&ingress.request_log, operation, caller, &items, begun.elapsed());
    if summary.left.is_empty() { Ok(summary) } else { Err(ApiError::unavailable()) }
}

/// Puts an array into the request log: one call of `operation` for what is accepted of each tenant, and one for each item that is refused.
/// Items without a tenant are in nobody's.
fn note_items(
    log: &RequestLog,
    operation: &'static Operation,
    caller: &Arc<Caller>,
    items: &ArrayItems,
    duration: Duration,
) {
    let note = |tenant: Uuid, status: StatusCode, refusal: Option<RefusalReason>, replayed: bool| {
        if let Some(call) = LoggedCall::new(Arc::clone(caller), LoggedTenant::Id(tenant), operation, status) {
            log.note(LoggedCall { refusal, replayed, duration, ..call });
        }
    };
    // Whether all that is accepted of a tenant was accepted before.
    let mut accepted: BTreeMap<Uuid, bool> = BTreeMap::new();
    for (item, outcome) in items.iter().zip(items.outcomes()) {
        let Some(tenant) = item.tenant else { continue };
        match outcome {
            Ok(_) if matches!(item.state, ItemState::Accepted(_)) => drop(accepted.insert(tenant, false)),
            Ok(_) => drop(accepted.entry(tenant).or_insert(true)),
            Err(refusal) => {
                let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST);
                note(tenant, status, Some(RefusalReason::of_item(&refusal)), false);
            }
        }
    }
    for (tenant, replayed) in accepted {
        note(tenant, ACCEPTED, None, replayed);
    }
}

/// Accepts or refuses one tenant's requests. `at_once` writes the sends of those that are due, and waits for contacts that another transaction
/// holds; else such a tenant's requests are left. Returns the announcements of the accepted ones.
async fn accept_for_tenant(
    db: &mut PgConnection,
    caller: &Caller,
    tenant: Uuid,
    items: &mut ArrayItems,
    at_once: bool,
) -> Result<Vec<Publication>, ApiError> {
    runtime::db::confine(db, tenant).await?;
    let contents = store::find_contents(db, tenant, &items.templates(tenant)).await?;
    let senders = store::find_senders(db, tenant, &items.senders(tenant)).await?;
    let contacts = if at_once {
        named::hold_addresses(db, tenant, &items.contacts(tenant)).await?
    } else if let Some(free) = named::try_hold_addresses(db, tenant, &items.contacts(tenant)).await? {
        free
    } else {
        items.leave(tenant);
        return Ok(Vec::new());
    };
    let mut batches = NewBatches::default();
    let mut requests = Vec::new();
    for item in items.of_mut(tenant) {
        item.decide(|valid| {
            let content = usable(contents.get(&valid.template_id).copied())?;
            let sender = ready(senders.get(&valid.sender_id).copied(), valid.sender_id)?;
            let address = contacts.address(&valid.contact)?;
            let send = batches.next_send(content, sender, valid.options.as_ref());
            requests.push(valid.into_request(send, address, content, sender));
            Ok(send)
        });
    }
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    for NewRequest { payload, options, .. } in &mut requests {
        if batches.needs_mark((payload.content_id, payload.sender_id), options.is_some()) {
            options.get_or_insert_default().is_bulk = true;
        }
    }
    let mails = column(&requests, |request| request.mail(tenant));
    let resolved = accept(db, &caller.requester(tenant), &mails, at_once).await?;
    let files = requests.into_iter().map(|request| (request.payload.send_id, request.attachments)).collect();
    insert_attachments(&mut *db, tenant, files).await?;
    trace::keep_each(db, batches.all().map(|(_, (batch, _))| (tenant, batch))).await?;
    batches.announcements(tenant, &caller.product, caller.environment, resolved)
}

/// The batches of the accepted requests: one for each content and sender, one for each mail with copies, which take the ordinals after its
/// own, one for each mail with files, which are those of its batch, and one for each mail that is due later.
#[derive(Debug, Default)]
struct NewBatches {
    shared: BTreeMap<MailSource, (Uuid, u16)>,
    /// Of mails with copies or files.
    separate: Vec<(MailSource, (Uuid, u16))>,
    /// How many sends there are of each, those that are due later too.
    totals: BTreeMap<MailSource, usize>,
}

/// Content and sender.
type MailSource = (Uuid, Uuid);

impl NewBatches {
    /// The id of the next send with this content and sender.
    fn next_send(&mut self, content: Uuid, sender: Uuid, options: Option<&MailOptions>) -> Uuid {
        let source = (content, sender);
        let sends = options.map_or(1, MailOptions::recipient_count);
        *self.totals.entry(source).or_default() += usize::from(sends);
        let is_separate = |options: &&MailOptions| {
            options.scheduled_at.is_some() || options.has_attachments || !options.copies.is_empty()
        };
        if let Some(options) = options.filter(is_separate) {
            let batch = MailOptions::batch_id(Some(options));
            // What is due later is announced by a sweep.
            if options.scheduled_at.is_none() {
                self.separate.push((source, (batch, sends)));
            }
            return batch;
        }
        let (batch, size) = self.shared.entry(source).or_insert_with(|| (schemas::new_batch_id(), 0));
        let send = SendId::of(*batch, *size);
        *size += 1;
        send.0
    }

    /// True if there are so many sends with this content and sender that they take the bulk lane, whatever batches they are in.
    fn is_bulk(&self, source: MailSource) -> bool {
        self.totals.get(&source).is_some_and(|total| *total > PROMPT_BATCH_MAX)
    }

    /// Whether a request has to say that it is bulk. The size of a large batch says so, to which all belong that have no options.
    fn needs_mark(&self, source: MailSource, has_options: bool) -> bool {
        let is_large = self.shared.get(&source).is_some_and(|(_, size)| usize::from(*size) > PROMPT_BATCH_MAX);
        self.is_bulk(source) && (has_options || !is_large)
    }

    /// Each batch, and how many sends it has.
    fn all(&self) -> impl Iterator<Item = (MailSource, (Uuid, u16))> {
        let shared = self.shared.iter().map(|(source, batch)| (*source, *batch));
        shared.chain(self.separate.iter().copied())
    }

    /// The announcements of the prompt batches that are `resolved`, or else one of their requests; and one of the large rest, which does not
    /// belong in the prompt queue: the audience stage has it dispatched.
    fn announcements(
        &self,
        tenant: Uuid,
        product: &str,
        environment: Environment,
        resolved: Option<Vec<Publication>>,
    ) -> Result<Vec<Publication>, ApiError> {
        let (large, prompt): (Vec<_>, Vec<_>) = self.all().partition(|(source, _)| self.is_bulk(*source));
        let mut announcements = match resolved {
            Some(batches) => batches,
            None => {
                let subject = subjects::accepted(product, environment, RequestKind::Transactional);
                Vec::from_iter(announcement(tenant, &prompt, subject)?)
            }
        };
        announcements.extend(announcement(tenant, &large, subjects::accepted_array(product, environment))?);
        Ok(announcements)
    }
}

fn announcement(
    tenant: Uuid,
    batches: &[(MailSource, (Uuid, u16))],
    subject: String,
) -> Result<Option<Publication>, ApiError> {
    let Some(((_, (first, _)), more)) = batches.split_first() else { return Ok(None) };
    let count: u32 = batches.iter().map(|(_, (_, size))| u32::from(*size)).sum();
    let announced = RequestAnnounced {
        more: more.iter().map(|(_, (batch, _))| *batch).collect(),
        count: Some(count),
        ..RequestAnnounced::of(tenant, *first, RequestKind::Transactional)
    };
    request_notice(subject, &announced).map(Some)
}

#[cfg(test)]
mod tests {
    use schemas::messages::{MailCopy, RecipientRole};

    use super::*;

    #[test]
    fn requests_with_one_content_and_sender_are_one_batch() {
        let mut batches = NewBatches::default();
        let (invoice, reminder, sender) = (schemas::new_id(), schemas::new_id(), schemas::new_id());
        let first = batches.next_send(invoice, sender, None);
        let other = batches.next_send(reminder, sender, None);
        let second = batches.next_send(invoice, sender, None);
        assert_eq!((SendId(first).ordinal(), SendId(second).ordinal(), SendId(other).ordinal()), (0, 1, 0));
        assert_eq!(SendId(first).batch(), SendId(second).batch());
        assert_ne!(SendId(first).batch(), SendId(other).batch());
        let copy = |email: &str| MailCopy {
            address: schemas::Address::parse(email).unwrap(),
            name: None,
            role: RecipientRole::Cc,
        };
        let copied =
            MailOptions { copies: vec![copy("a@example.com"), copy("b@example.com")], ..MailOptions::default() };
        let copied = batches.next_send(invoice, sender, Some(&copied));
        assert_eq!(SendId(copied).ordinal(), 0);
        assert!(batches.all().any(|(_, batch)| batch == (copied, 3)));
        let with_files = MailOptions { has_attachments: true, ..MailOptions::default() };
        let with_files = [(); 2].map(|()| batches.next_send(invoice, sender, Some(&with_files)));
        assert_ne!(with_files[0], with_files[1], "files are those of a batch");
        assert!(with_files.iter().all(|own| batches.all().any(|(_, batch)| batch == (*own, 1))));
        let due = chrono::Utc::now() + chrono::TimeDelta::days(1);
        let later = MailOptions { scheduled_at: Some(due), ..MailOptions::default() };
        let later = batches.next_send(invoice, sender, Some(&later));
        assert!(SendId(later).made_at() > chrono::Utc::now() && batches.all().all(|(_, (batch, _))| batch != later));
    }

    #[test]
    fn copies_files_and_due_times_keep_no_array_out_of_the_bulk_lane() {
        let (invoice, reminder, sender) = (schemas::new_id(), schemas::new_id(), schemas::new_id());
        let due = chrono::Utc::now() + chrono::TimeDelta::days(1);
        let address = schemas::Address::parse("a@example.com").unwrap();
        let copy = MailCopy { address, name: None, role: RecipientRole::Bcc };
        let copied = MailOptions { copies: vec![copy; 49], ..MailOptions::default() };
        let later = MailOptions { scheduled_at: Some(due), ..MailOptions::default() };
        let with_files = MailOptions { has_attachments: true, ..MailOptions::default() };
        for (options, count) in [(&later, PROMPT_BATCH_MAX), (&copied, 1), (&with_files, PROMPT_BATCH_MAX)] {
            let mut batches = NewBatches::default();
            batches.next_send(reminder, sender, Some(options));
            for _ in 0..count {
                batches.next_send(invoice, sender, Some(options));
            }
            assert!(!batches.is_bulk((invoice, sender)));
            batches.next_send(invoice, sender, None);
            assert!(batches.is_bulk((invoice, sender)) && !batches.is_bulk((reminder, sender)));
            assert!(batches.needs_mark((invoice, sender), false));
        }
    }

    #[test]
    fn large_batches_are_announced_on_their_own_subject() {
        let mut batches = NewBatches::default();
        let (invoice, reminder, sender) = (schemas::new_id(), schemas::new_id(), schemas::new_id());
        for _ in 0..=PROMPT_BATCH_MAX {
            batches.next_send(invoice, sender, None);
        }
        batches.next_send(reminder, sender, None);
        let announcements =
            batches.announcements(schemas::new_id(), "shop", Environment::Production, None).unwrap_or_default();
        let subjects: Vec<&str> = announcements.iter().map(|one| one.subject.as_str()).collect();
        assert_eq!(
            subjects,
            ["mail.v1.accepted.shop.production.transactional", "mail.v1.accepted.shop.production.transactional-array"]
        );
    }
}
