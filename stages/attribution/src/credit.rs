//! Credits a group of outcomes in one transaction: loads their touches, computes the credits, and writes what changed.

use std::{collections::BTreeMap, slice};

use chrono::{DateTime, TimeDelta, Utc};
use runtime::{Counter, column, plans::PreparedPool};
use schemas::{AttributionModel, MessageKind, SendId};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    model::{self, CreditLine, CreditRule, WeighedOutcome},
    totals::{CountedOutcome, OutcomeTotals},
    touches::{self, TouchQuery},
};
use ledger::{
    attribution::Policy,
    hours::hour_of,
    outcomes::{
        Premium, SHARE_WHOLE,
        contacts::{self, ContactKeys, MatchedContacts},
    },
};

/// The most outcomes that are credited in one transaction.
pub(crate) const OUTCOMES_MAX: i64 = 200;

/// An outcome is rechecked this many minutes after its last report, whatever late facts come between. The recheck finds changes that no
/// trigger records (a late delivery report, rescored clicks) and late facts that were committed between two snapshots.
const RECHECK_MINUTES: [i32; 5] = [1, 15, 120, 24 * 60, 96 * 60];

/// How many outcomes were computed, and how many credits changed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CreditCounts {
    /// Outcomes that were due and not locked by another process.
    pub(crate) outcomes: u64,
    /// New and changed credits by their rule: a click, a delivery, no touch.
    pub(crate) clicked: u64,
    pub(crate) delivered: u64,
    pub(crate) uncredited: u64,
}

impl CreditCounts {
    fn add(&mut self, other: Self) {
        self.outcomes += other.outcomes;
        self.clicked += other.clicked;
        self.delivered += other.delivered;
        self.uncredited += other.uncredited;
    }

    /// Counts new and changed credits in the metrics.
    pub(crate) fn count(self) {
        for (rule, credits) in [("human_click", self.clicked), ("delivered", self.delivered), ("none", self.uncredited)]
        {
            Counter::OutcomesCreditedTotal.add(credits, [("rule", rule)]);
        }
    }
}

/// Credits those of these outcomes that are due and not locked by another process.
pub(crate) async fn credit_outcomes(by_key: &PreparedPool, outcomes: &[(Uuid, Uuid)]) -> sqlx::Result<CreditCounts> {
    let mut tx = by_key.begin().await?;
    let counts = recompute_credits(&mut tx, outcomes.iter().copied().unzip()).await?;
    tx.commit().await?;
    Ok(counts)
}

/// Credits the outcomes that are due longest.
pub(crate) async fn credit_due_outcomes(by_key: &PreparedPool) -> sqlx::Result<CreditCounts> {
    let mut tx = by_key.begin().await?;
    let due = sqlx::query!(
        "select tenant_id, id from outcomes where credit_due <= now()
         order by credit_due limit $1 for no key update skip locked",
        OUTCOMES_MAX,
    )
    .fetch_all(&mut *tx)
    .await?;
    let due: Vec<(Uuid, Uuid)> = due.into_iter().map(|due| (due.tenant_id, due.id)).collect();
    let counts = recompute_credits(&mut tx, due.iter().copied().unzip()).await;
    if counts.as_ref().is_err_and(runtime::db::is_about_data) {
        tx.rollback().await?;
        return credit_each(by_key, &due).await;
    }
    let counts = counts?;
    tx.commit().await?;
    Ok(counts)
}

/// Credits outcomes one by one: one whose credit cannot be written, as its totals would be too large, keeps no other waiting. It is tried
/// again the next day.
///
/// # Errors
/// Of the first that cannot be written, once the others are.
async fn credit_each(by_key: &PreparedPool, outcomes: &[(Uuid, Uuid)]) -> sqlx::Result<CreditCounts> {
    let (mut sum, mut refused) = (CreditCounts::default(), None);
    for outcome in outcomes {
        match credit_outcomes(by_key, slice::from_ref(outcome)).await {
            Ok(counts) => sum.add(counts),
            Err(error) if runtime::db::is_about_data(&error) => {
                postpone(by_key, *outcome).await?;
                refused.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    refused.map_or(Ok(sum), Err)
}

async fn postpone(by_key: &PreparedPool, (tenant, id): (Uuid, Uuid)) -> sqlx::Result<()> {
    let mut db = by_key.take().await?;
    sqlx::query!(
        "update outcomes set credit_due = now() + interval '1 day'
         where tenant_id = $1 and id = $2 and credit_due <= now()",
        tenant,
        id,
    )
    .execute(&mut *db)
    .await?;
    db.put_back();
    Ok(())
}

/// An outcome whose credit is due, with its row locked.
#[derive(Debug)]
struct DueOutcome {
    tenant_id: Uuid,
    id: Uuid,
    contact_email: Option<String>,
    dot_number: Option<i64>,
    /// Of a contact that was merged while the outcome was recorded, the one that is left.
    contact_id: Option<Uuid>,
    contact_key: Option<String>,
    outcome_type: String,
    premium: Option<i64>,
    value_cents: Option<i64>,
    occurred_at: DateTime<Utc>,
    credit_reason: String,
    /// Since its last report.
    age_minutes: i32,
    revision: i32,
    booked_type: Option<String>,
    booked_hour: Option<DateTime<Utc>>,
    booked_premium: Option<i64>,
    booked_value_cents: Option<i64>,
    /// How it is credited now; `None` before the first credit.
    model: Option<AttributionModel>,
    click_days: Option<i32>,
    delivery_days: Option<i32>,
    rule: Option<String>,
}

/// Locks and loads those of these outcomes that are due.
async fn load_due(db: &mut PgConnection, (tenants, ids): (Vec<Uuid>, Vec<Uuid>)) -> sqlx::Result<Vec<DueOutcome>> {
    sqlx::query_as!(
        DueOutcome,
        r#"select o.tenant_id, o.id, o.contact_email, o.dot_number, o.contact_key, o.outcome_type, o.premium,
                o.value_cents, o.occurred_at, o.credit_reason, floor(extract(epoch from now() - o.updated_at) / 60)::int as "age_minutes!", o.revision, o.booked_type, o.booked_hour, o.booked_premium,
                o.booked_value_cents, o.model as "model: AttributionModel", o.click_days, o.delivery_days, o.rule,
                coalesce((select c.merged_into from contacts c where c.tenant_id = o.tenant_id and c.id = o.contact_id), o.contact_id)
                    as contact_id
         from (select distinct * from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)) w
         join outcomes o on o.tenant_id = w.tenant_id and o.id = w.id
         where o.credit_due is not null
         order by o.tenant_id, o.id for no key update of o skip locked"#,
        &tenants,
        &ids,
    )
    .fetch_all(db)
    .await
}

/// An outcome with its credits before and after the computation.
struct CreditChange<'a> {
    due: &'a DueOutcome,
    policy: Policy,
    contact: Option<(Uuid, String)>,
    rule: Option<CreditRule>,
    before: Vec<CreditLine>,
    after: Vec<CreditLine>,
    /// The ledger has dropped what it is credited by.
    is_final: bool,
}

impl<'a> CreditChange<'a> {
    /// The credits stay with their mails; only amounts that have changed are divided anew, by the same shares.
    fn keeping(due: &'a DueOutcome, policy: Policy, before: Vec<CreditLine>) -> Self {
        let policy = Policy {
            model: due.model.unwrap_or(policy.model),
            click_days: due.click_days.unwrap_or(policy.click_days),
            delivery_days: due.delivery_days.unwrap_or(policy.delivery_days),
        };
        let mut after = before.clone();
        let shares: Vec<i32> = before.iter().map(|line| line.share).collect();
        if before.iter().map(|line| line.premium).sum::<Option<i64>>() != due.premium {
            let parts = model::divide_by_shares(due.premium, &shares);
            after.iter_mut().zip(parts).for_each(|(line, part)| line.premium = part);
        }
        if before.iter().map(|line| line.value_cents).sum::<Option<i64>>() != due.value_cents {
            let parts = model::divide_by_shares(due.value_cents, &shares);
            after.iter_mut().zip(parts).for_each(|(line, part)| line.value_cents = part);
        }
        let contact = due.contact_id.zip(due.contact_key.clone());
        let rule = due.rule.as_deref().and_then(CreditRule::parse);
        Self { due, policy, contact, rule, before, after, is_final: true }
    }

    /// True if shares or amounts change. Another click of the same mail as evidence is no restatement.
    fn is_restated(&self) -> bool {
        let parts = |lines: &[CreditLine]| -> Vec<_> {
            lines.iter().map(|line| (line.send_id, line.share, line.premium, line.value_cents)).collect()
        };
        parts(&self.before) != parts(&self.after)
    }

    fn counted_before(&self) -> Option<CountedOutcome<'_>> {
        Some(CountedOutcome {
            outcome_type: self.due.booked_type.as_deref()?,
            hour: self.due.booked_hour?,
            premium: self.due.booked_premium.unwrap_or(0),
            value_cents: self.due.booked_value_cents.unwrap_or(0),
            parts: &self.before,
        })
    }

    fn counted_after(&self) -> CountedOutcome<'_> {
        CountedOutcome {
            outcome_type: &self.due.outcome_type,
            hour: hour_of(self.due.occurred_at),
            premium: self.due.premium.unwrap_or(0),
            value_cents: self.due.value_cents.unwrap_or(0),
            parts: &self.after,
        }
    }

    fn next_check_minutes(&self) -> Option<i32> {
        let age = self.due.age_minutes;
        RECHECK_MINUTES.iter().find(|at| !self.is_final && **at > age).map(|at| at - age)
    }
}

/// Credits those of these outcomes, by tenant and id, that are due and not locked by another process.
async fn recompute_credits(db: &mut PgConnection, outcomes: (Vec<Uuid>, Vec<Uuid>)) -> sqlx::Result<CreditCounts> {
    let due = &load_due(&mut *db, outcomes).await?;
    if due.is_empty() {
        return Ok(CreditCounts::default());
    }
    let tenants: Vec<Uuid> = due.iter().map(|due| due.tenant_id).collect();
    let policies = Policy::of(&mut *db, &tenants).await?;
    let policy = |due: &DueOutcome| policies.get(&due.tenant_id).copied().unwrap_or_default();
    let candidates = candidates(&mut *db, due).await?;
    let queries: Vec<TouchQuery> =
        due.iter().zip(&candidates).map(|(due, (contacts, _))| touch_query(due, &policy(due), contacts)).collect();
    let touches = touches::load_touches(&mut *db, &queries).await?;
    let mut known = load_credits(&mut *db, due).await?;
    let dropped = sqlx::query_scalar!("select max(month) from dropped_months").fetch_one(&mut *db).await?;
    let is_dropped = |line: &CreditLine| dropped.is_some_and(|month| SendId(line.send_id).month() <= month);
    let changes: Vec<CreditChange<'_>> = due
        .iter()
        .zip(candidates)
        .zip(&touches)
        .map(|((due, (contacts, key)), touches)| {
            let policy = policy(due);
            let before = known.remove(&(due.tenant_id, due.id)).unwrap_or_default();
            // Computed again, credits for mail that the ledger has dropped would be lost.
            if before.iter().any(is_dropped) {
                return CreditChange::keeping(due, policy, before);
            }
            let outcome =
                WeighedOutcome { occurred_at: due.occurred_at, premium: due.premium, value_cents: due.value_cents };
            let (rule, mut after) = model::credit(&policy, touches, &outcome);
            let contact = after.first().map(|line| line.contact_id);
            let contact = contact
                .or(due.contact_id.filter(|contact| contacts.contains(contact)))
                .or(contacts.first().copied())
                .map(|contact| (contact, key));
            // In the order of the primary key.
            after.sort_by_key(|line| line.send_id);
            CreditChange { due, policy, contact, rule, before, after, is_final: false }
        })
        .collect();
    write_changes(db, &changes).await?;
    Ok(count_changes(&changes))
}

fn count_changes(changes: &[CreditChange<'_>]) -> CreditCounts {
    let mut counts = CreditCounts { outcomes: changes.len() as u64, ..CreditCounts::default() };
    for change in changes.iter().filter(|change| change.is_restated()) {
        match change.rule {
            Some(CreditRule::HumanClick) => counts.clicked += 1,
            Some(CreditRule::Delivered) => counts.delivered += 1,
            None => counts.uncredited += 1,
        }
    }
    counts
}

fn touch_query(due: &DueOutcome, policy: &Policy, contacts: &[Uuid]) -> TouchQuery {
    let since = |days: i32| due.occurred_at - TimeDelta::days(days.into());
    TouchQuery {
        tenant: due.tenant_id,
        contacts: contacts.to_vec(),
        clicks_since: since(policy.click_days),
        deliveries_since: since(policy.delivery_days),
        occurred_at: due.occurred_at,
    }
}

/// The contacts each outcome may be about, and the key that found them. A contact found by address stays, and so does a contact that
/// was erased since. A DOT number is looked up again each time: a company's contacts change.
async fn candidates(db: &mut PgConnection, due: &[DueOutcome]) -> sqlx::Result<Vec<(Vec<Uuid>, String)>> {
    let keys: Vec<ContactKeys<'_>> = due
        .iter()
        .map(|due| ContactKeys {
            tenant: due.tenant_id,
            email: due.contact_email.as_deref(),
            dot_number: due.dot_number,
        })
        .collect();
    let found = contacts::find(db, &keys).await?;
    Ok(due.iter().zip(found).map(|(due, found)| choose_contacts(due, &found)).collect())
}

fn choose_contacts(due: &DueOutcome, found: &MatchedContacts) -> (Vec<Uuid>, String) {
    let (contacts, key) = found.candidates();
    match (due.contact_id, due.contact_key.as_deref()) {
        (Some(contact), Some(known)) if known == "email" || contacts.is_empty() => (vec![contact], known.to_owned()),
        _ => (contacts.to_vec(), key.to_owned()),
    }
}

/// Loads the current credits by tenant and outcome.
async fn load_credits(
    db: &mut PgConnection,
    due: &[DueOutcome],
) -> sqlx::Result<BTreeMap<(Uuid, Uuid), Vec<CreditLine>>> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = due.iter().map(|due| (due.tenant_id, due.id)).unzip();
    let rows = sqlx::query_file!("queries/load_credits.sql", &tenants, &ids).fetch_all(db).await?;
    let mut known: BTreeMap<(Uuid, Uuid), Vec<CreditLine>> = BTreeMap::new();
    for row in rows {
        known.entry((row.tenant_id, row.outcome_id)).or_default().push(CreditLine {
            send_id: row.send_id,
            campaign_id: row.campaign_id,
            kind: row.kind,
            contact_id: row.contact_id,
            share: row.share,
            premium: row.premium,
            value_cents: row.value_cents,
            touched_at: row.touched_at,
            evidence: row.evidence,
        });
    }
    Ok(known)
}

/// Writes what changed. Follows the ledger's lock order: outcomes (already locked), then totals.
async fn write_changes(db: &mut PgConnection, changes: &[CreditChange<'_>]) -> sqlx::Result<()> {
    let changed: Vec<&CreditChange<'_>> = changes.iter().filter(|change| change.before != change.after).collect();
    let restated: Vec<&CreditChange<'_>> = changes.iter().filter(|change| change.is_restated()).collect();
    if !changed.is_empty() {
        replace_credits(&mut *db, &changed).await?;
    }
    if !restated.is_empty() {
        insert_restatements(&mut *db, &restated).await?;
        insert_notices(&mut *db, &restated).await?;
    }
    finish_outcomes(&mut *db, changes).await?;
    let mut totals = OutcomeTotals::default();
    for change in changes {
        totals.replace(change.due.tenant_id, change.counted_before(), change.counted_after());
    }
    totals.write(db).await
}

async fn replace_credits(db: &mut PgConnection, changed: &[&CreditChange<'_>]) -> sqlx::Result<()> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) =
        changed.iter().map(|change| (change.due.tenant_id, change.due.id)).unzip();
    sqlx::query!(
        "delete from outcome_credits c using unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
         where c.tenant_id = w.tenant_id and c.outcome_id = w.id",
        &tenants,
        &ids,
    )
    .execute(&mut *db)
    .await?;
    let lines: Vec<(&DueOutcome, &CreditLine)> =
        changed.iter().flat_map(|change| change.after.iter().map(|line| (change.due, line))).collect();
    sqlx::query!(
        "insert into outcome_credits
             (tenant_id, outcome_id, send_id, campaign_id, kind, contact_id, share, premium, value_cents, touched_at, evidence)
         select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::uuid[], $7::int[], $8::bigint[],
                              $9::bigint[], $10::timestamptz[], $11::jsonb[])",
        &column(&lines, |(due, _)| due.tenant_id),
        &column(&lines, |(due, _)| due.id),
        &column(&lines, |(_, line)| line.send_id),
        &column(&lines, |(_, line)| line.campaign_id) as &[Option<Uuid>],
        &column(&lines, |(_, line)| line.kind.as_str()) as &[&str],
        &column(&lines, |(_, line)| line.contact_id),
        &column(&lines, |(_, line)| line.share),
        &column(&lines, |(_, line)| line.premium) as &[Option<i64>],
        &column(&lines, |(_, line)| line.value_cents) as &[Option<i64>],
        &column(&lines, |(_, line)| line.touched_at),
        &column(&lines, |(_, line)| line.evidence.clone()),
    )
    .execute(db)
    .await
    .map(drop)
}

async fn insert_restatements(db: &mut PgConnection, restated: &[&CreditChange<'_>]) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into outcome_restatements (tenant_id, outcome_id, revision, reason, model, click_days, delivery_days, rule, credits)
         select * from unnest($1::uuid[], $2::uuid[], $3::int[], $4::text[], $5::text[], $6::int[], $7::int[], $8::text[], $9::jsonb[])",
        &column(restated, |change| change.due.tenant_id),
        &column(restated, |change| change.due.id),
        &column(restated, |change| change.due.revision + 1),
        &column(restated, |change| change.due.credit_reason.as_str()) as &[&str],
        &column(restated, |change| change.policy.model.as_str()) as &[&str],
        &column(restated, |change| change.policy.click_days),
        &column(restated, |change| change.policy.delivery_days),
        &column(restated, |change| change.rule.map(CreditRule::as_str)) as &[Option<&str>],
        &column(restated, |change| with_amounts(&change.after)),
    )
    .execute(db)
    .await
    .map(drop)
}

/// The credits as JSON with whole numbers, as in the ledger.
fn with_amounts(lines: &[CreditLine]) -> Value {
    let line = |line: &CreditLine| {
        json!({
            "send_id": line.send_id, "campaign_id": line.campaign_id, "share": line.share, "premium": line.premium,
            "value_cents": line.value_cents,
        })
    };
    lines.iter().map(line).collect()
}

/// Inserts the notices that become `outcome.credited` events: one for each restatement, with an id derived from it.
async fn insert_notices(db: &mut PgConnection, restated: &[&CreditChange<'_>]) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into notices (tenant_id, id, type, contact_id, subject_id, data)
         select w.tenant_id, w.id, 'outcome.credited', w.contact_id, w.subject_id, w.data
         from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::jsonb[]) as w (tenant_id, id, contact_id, subject_id, data)
         on conflict do nothing",
        &column(restated, |change| change.due.tenant_id),
        &column(restated, |change| Uuid::new_v5(&change.due.id, format!("credit-{}", change.due.revision + 1).as_bytes())),
        &column(restated, |change| change.contact.as_ref().map(|(contact, _)| *contact)) as &[Option<Uuid>],
        &column(restated, |change| change.due.id),
        &column(restated, |change| notice_data(change)),
    )
    .execute(db)
    .await
    .map(drop)
}

fn notice_data(change: &CreditChange<'_>) -> Value {
    let shares = |lines: &[CreditLine]| -> Value {
        let line = |line: &CreditLine| {
            json!({
                "send_id": line.send_id, "campaign_id": line.campaign_id,
                "share": f64::from(line.share) / SHARE_WHOLE as f64,
                "premium_amount": line.premium.map(|premium| Premium(premium).dollars()), "value_cents": line.value_cents,
            })
        };
        lines.iter().map(line).collect()
    };
    json!({
        "outcome_id": change.due.id, "outcome_type": change.due.outcome_type, "revision": change.due.revision + 1,
        "reason": change.due.credit_reason, "model": change.policy.model, "rule": change.rule.map(CreditRule::as_str),
        "before": shares(&change.before), "after": shares(&change.after),
    })
}

async fn finish_outcomes(db: &mut PgConnection, changes: &[CreditChange<'_>]) -> sqlx::Result<()> {
    let booked: Vec<CountedOutcome<'_>> = changes.iter().map(CreditChange::counted_after).collect();
    sqlx::query_file!(
        "queries/finish_outcomes.sql",
        &column(changes, |change| change.due.tenant_id),
        &column(changes, |change| change.due.id),
        &column(changes, |change| change.contact.as_ref().map(|(contact, _)| *contact)) as &[Option<Uuid>],
        &column(changes, |change| change.contact.as_ref().map(|(_, key)| key.as_str())) as &[Option<&str>],
        &column(changes, CreditChange::next_check_minutes) as &[Option<i32>],
        &column(changes, CreditChange::is_restated),
        &column(changes, |change| change.policy.model.as_str()) as &[&str],
        &column(changes, |change| change.policy.click_days),
        &column(changes, |change| change.policy.delivery_days),
        &column(changes, |change| change.rule.map(CreditRule::as_str)) as &[Option<&str>],
        &column(&booked, |booked| booked.outcome_type) as &[&str],
        &column(&booked, |booked| booked.hour),
        &column(&booked, |booked| booked.premium),
        &column(&booked, |booked| booked.value_cents),
    )
    .execute(db)
    .await
    .map(drop)
}
