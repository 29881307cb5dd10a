//! One look at a group of outcomes: what led to them as the facts stand now, and what that changes. One transaction.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use runtime::plans::PreparedPool;
use schemas::MessageKind;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    Policy,
    model::{self, Credit, Weighed},
    totals::{Booked, Part, Totals, hour_of},
    touches::{self, Asked},
};
use ledger::outcomes::contacts::{self, ContactKeys, MatchedContacts};
use ledger::outcomes::{Premium, SHARE_WHOLE};

/// Outcomes looked at in one transaction, at most.
pub(crate) const AT_ONCE: i64 = 200;

/// Without any late fact an outcome is looked at again, so many minutes after the look before: what no trigger notes (a delivery
/// told late, clicks scored anew) counts all the same, and so does a note that came between two snapshots.
const LOOKS_AGAIN: [i32; 5] = [1, 15, 120, 24 * 60, 72 * 60];

/// An outcome that is to be looked at, locked.
#[derive(Debug)]
struct Due {
    tenant_id: Uuid,
    id: Uuid,
    contact_email: Option<String>,
    dot_number: Option<i64>,
    contact_id: Option<Uuid>,
    contact_key: Option<String>,
    outcome_type: String,
    premium: Option<i64>,
    value_cents: Option<i64>,
    occurred_at: DateTime<Utc>,
    credit_reason: String,
    credit_attempts: i16,
    revision: i32,
    booked_type: Option<String>,
    booked_hour: Option<DateTime<Utc>>,
    booked_premium: Option<i64>,
    booked_value_cents: Option<i64>,
}

/// A credited mail as it stands in the ledger.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    send_id: Uuid,
    campaign_id: Option<Uuid>,
    kind: MessageKind,
    contact_id: Uuid,
    share: i32,
    premium: Option<i64>,
    value_cents: Option<i64>,
    touched_at: DateTime<Utc>,
    evidence: Value,
}

/// What came of a look.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Looked {
    /// Outcomes that were due and nobody else's.
    pub(crate) outcomes: u64,
    /// Credits that were set or changed, by why: a click, a delivery, nothing any more.
    pub(crate) clicked: u64,
    pub(crate) delivered: u64,
    pub(crate) uncredited: u64,
}

/// Looks at these outcomes, those that are due; what somebody else looks at is left to him.
pub(crate) async fn look_at(by_key: &PreparedPool, outcomes: &[(Uuid, Uuid)]) -> sqlx::Result<Looked> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = outcomes.iter().copied().unzip();
    let mut tx = by_key.begin().await?;
    let due = sqlx::query_as!(
        Due,
        "select o.tenant_id, o.id, o.contact_email, o.dot_number, o.contact_id, o.contact_key, o.outcome_type, o.premium,
                o.value_cents, o.occurred_at, o.credit_reason, o.credit_attempts, o.revision, o.booked_type, o.booked_hour, o.booked_premium,
                o.booked_value_cents
         from (select distinct * from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)) w
         join outcomes o on o.tenant_id = w.tenant_id and o.id = w.id
         where o.credit_due is not null
         order by o.tenant_id, o.id for no key update of o skip locked",
        &tenants,
        &ids,
    )
    .fetch_all(&mut *tx)
    .await?;
    let looked = look(&mut tx, &due).await?;
    tx.commit().await?;
    Ok(looked)
}

/// Looks at those that are due longest.
pub(crate) async fn look_at_due(by_key: &PreparedPool) -> sqlx::Result<Looked> {
    let mut tx = by_key.begin().await?;
    let due = sqlx::query_as!(
        Due,
        "select o.tenant_id, o.id, o.contact_email, o.dot_number, o.contact_id, o.contact_key, o.outcome_type, o.premium,
                o.value_cents, o.occurred_at, o.credit_reason, o.credit_attempts, o.revision, o.booked_type, o.booked_hour, o.booked_premium,
                o.booked_value_cents
         from outcomes o
         where o.credit_due <= now()
         order by o.credit_due limit $1 for no key update skip locked",
        AT_ONCE,
    )
    .fetch_all(&mut *tx)
    .await?;
    let looked = look(&mut tx, &due).await?;
    tx.commit().await?;
    Ok(looked)
}

/// What a look says of an outcome.
struct Finding<'a> {
    due: &'a Due,
    policy: Policy,
    contact: Option<(Uuid, String)>,
    rule: Option<model::Rule>,
    before: Vec<Line>,
    after: Vec<Line>,
}

impl Finding<'_> {
    /// Whether anybody gets more or less than before. Which click of a mail shows it is no restatement.
    fn is_restated(&self) -> bool {
        let parts = |lines: &[Line]| -> Vec<_> {
            lines.iter().map(|line| (line.send_id, line.share, line.premium, line.value_cents)).collect()
        };
        parts(&self.before) != parts(&self.after)
    }

    fn booked_before(&self) -> Option<Booked> {
        Some(Booked {
            outcome_type: self.due.booked_type.clone()?,
            hour: self.due.booked_hour?,
            premium: self.due.booked_premium.unwrap_or(0),
            value_cents: self.due.booked_value_cents.unwrap_or(0),
            parts: parts(&self.before),
        })
    }

    fn booked_after(&self) -> Booked {
        Booked {
            outcome_type: self.due.outcome_type.clone(),
            hour: hour_of(self.due.occurred_at),
            premium: self.due.premium.unwrap_or(0),
            value_cents: self.due.value_cents.unwrap_or(0),
            parts: parts(&self.after),
        }
    }

    fn next_look(&self) -> Option<i32> {
        usize::try_from(self.due.credit_attempts).ok().and_then(|attempt| LOOKS_AGAIN.get(attempt)).copied()
    }
}

fn parts(lines: &[Line]) -> Vec<Part> {
    lines
        .iter()
        .map(|line| Part {
            campaign_id: line.campaign_id,
            kind: line.kind.as_str().to_owned(),
            share: line.share.into(),
            premium: line.premium.unwrap_or(0),
            value_cents: line.value_cents.unwrap_or(0),
        })
        .collect()
}

async fn look(db: &mut PgConnection, due: &[Due]) -> sqlx::Result<Looked> {
    if due.is_empty() {
        return Ok(Looked::default());
    }
    let tenants: Vec<Uuid> = due.iter().map(|due| due.tenant_id).collect();
    let policies = Policy::of(&mut *db, &tenants).await?;
    let policy = |due: &Due| policies.get(&due.tenant_id).copied().unwrap_or_default();
    let candidates = candidates(&mut *db, due).await?;
    let asked: Vec<Asked> =
        due.iter().zip(&candidates).map(|(due, (contacts, _))| question(due, &policy(due), contacts)).collect();
    let touches = touches::load(&mut *db, &asked).await?;
    let mut known = known_credits(&mut *db, due).await?;
    let findings: Vec<Finding<'_>> = due
        .iter()
        .zip(candidates)
        .zip(&touches)
        .map(|((due, (contacts, key)), touches)| {
            let policy = policy(due);
            let weighed = Weighed {
                occurred_at: due.occurred_at,
                premium: due.premium.map(Premium),
                value_cents: due.value_cents,
            };
            let credits = model::credit(&policy, touches, &weighed);
            let contact = credits.first().map(|credit| credit.touch.contact_id);
            let contact = contact
                .or(due.contact_id.filter(|contact| contacts.contains(contact)))
                .or(contacts.first().copied())
                .map(|contact| (contact, key));
            Finding {
                due,
                policy,
                contact,
                rule: credits.first().map(|credit| credit.touch.rule),
                before: known.remove(&(due.tenant_id, due.id)).unwrap_or_default(),
                after: lines(&credits),
            }
        })
        .collect();
    write(db, &findings).await?;
    Ok(measure(&findings))
}

fn measure(findings: &[Finding<'_>]) -> Looked {
    let mut looked = Looked { outcomes: findings.len() as u64, ..Looked::default() };
    for finding in findings.iter().filter(|finding| finding.is_restated()) {
        match finding.rule {
            Some(model::Rule::HumanClick) => looked.clicked += 1,
            Some(model::Rule::Delivered) => looked.delivered += 1,
            None => looked.uncredited += 1,
        }
    }
    looked
}

fn question(due: &Due, policy: &Policy, contacts: &[Uuid]) -> Asked {
    let since = |days: i32| due.occurred_at - TimeDelta::days(days.into());
    Asked {
        tenant: due.tenant_id,
        contacts: contacts.to_vec(),
        clicks_since: since(policy.click_days),
        deliveries_since: since(policy.delivery_days),
        occurred_at: due.occurred_at,
    }
}

/// Everybody each outcome may be about, and by which key. Who was found by his address stays; so does he who was found and erased
/// since. A number is looked up anew: a company's people come and go.
async fn candidates(db: &mut PgConnection, due: &[Due]) -> sqlx::Result<Vec<(Vec<Uuid>, String)>> {
    let keys: Vec<ContactKeys<'_>> = due
        .iter()
        .map(|due| ContactKeys {
            tenant: due.tenant_id,
            email: due.contact_email.as_deref(),
            dot_number: due.dot_number,
        })
        .collect();
    let found = contacts::find(db, &keys).await?;
    Ok(due.iter().zip(found).map(|(due, found)| who(due, &found)).collect())
}

fn who(due: &Due, found: &MatchedContacts) -> (Vec<Uuid>, String) {
    let (contacts, key) = found.candidates();
    match (due.contact_id, due.contact_key.as_deref()) {
        (Some(contact), Some(known)) if known == "email" || contacts.is_empty() => (vec![contact], known.to_owned()),
        _ => (contacts.to_vec(), key.to_owned()),
    }
}

/// The credits as the ledger keeps them, in the order of its key.
fn lines(credits: &[Credit]) -> Vec<Line> {
    let mut lines: Vec<Line> = credits
        .iter()
        .map(|credit| Line {
            send_id: credit.touch.send_id,
            campaign_id: credit.touch.campaign_id,
            kind: credit.touch.kind,
            contact_id: credit.touch.contact_id,
            share: i32::try_from(credit.share).unwrap_or(0),
            premium: credit.premium.map(|premium| premium.0),
            value_cents: credit.value_cents,
            touched_at: credit.touch.at,
            evidence: credit.touch.evidence.clone(),
        })
        .collect();
    lines.sort_by_key(|line| line.send_id);
    lines
}

/// The credits that outcomes have, by tenant and outcome.
async fn known_credits(db: &mut PgConnection, due: &[Due]) -> sqlx::Result<BTreeMap<(Uuid, Uuid), Vec<Line>>> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = due.iter().map(|due| (due.tenant_id, due.id)).unzip();
    let rows = sqlx::query_file!("queries/old_credits.sql", &tenants, &ids).fetch_all(db).await?;
    let mut known: BTreeMap<(Uuid, Uuid), Vec<Line>> = BTreeMap::new();
    for row in rows {
        known.entry((row.tenant_id, row.outcome_id)).or_default().push(Line {
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

/// Writes what changed. Locks in the order of the whole ledger: outcomes (they are), then totals.
async fn write(db: &mut PgConnection, findings: &[Finding<'_>]) -> sqlx::Result<()> {
    let changed: Vec<&Finding<'_>> = findings.iter().filter(|finding| finding.before != finding.after).collect();
    let restated: Vec<&Finding<'_>> = findings.iter().filter(|finding| finding.is_restated()).collect();
    if !changed.is_empty() {
        replace_credits(&mut *db, &changed).await?;
    }
    if !restated.is_empty() {
        keep_history(&mut *db, &restated).await?;
        tell(&mut *db, &restated).await?;
    }
    look_done(&mut *db, findings).await?;
    let mut totals = Totals::default();
    for finding in findings {
        totals.moves(finding.due.tenant_id, finding.booked_before().as_ref(), &finding.booked_after());
    }
    totals.write(db).await
}

async fn replace_credits(db: &mut PgConnection, changed: &[&Finding<'_>]) -> sqlx::Result<()> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) =
        changed.iter().map(|finding| (finding.due.tenant_id, finding.due.id)).unzip();
    sqlx::query!(
        "delete from outcome_credits c using unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
         where c.tenant_id = w.tenant_id and c.outcome_id = w.id",
        &tenants,
        &ids,
    )
    .execute(&mut *db)
    .await?;
    let lines: Vec<(&Due, &Line)> =
        changed.iter().flat_map(|finding| finding.after.iter().map(|line| (finding.due, line))).collect();
    let tenants: Vec<Uuid> = lines.iter().map(|(due, _)| due.tenant_id).collect();
    let outcomes: Vec<Uuid> = lines.iter().map(|(due, _)| due.id).collect();
    let sends: Vec<Uuid> = lines.iter().map(|(_, line)| line.send_id).collect();
    let campaigns: Vec<Option<Uuid>> = lines.iter().map(|(_, line)| line.campaign_id).collect();
    let kinds: Vec<&str> = lines.iter().map(|(_, line)| line.kind.as_str()).collect();
    let contacts: Vec<Uuid> = lines.iter().map(|(_, line)| line.contact_id).collect();
    let shares: Vec<i32> = lines.iter().map(|(_, line)| line.share).collect();
    let premiums: Vec<Option<i64>> = lines.iter().map(|(_, line)| line.premium).collect();
    let values: Vec<Option<i64>> = lines.iter().map(|(_, line)| line.value_cents).collect();
    let times: Vec<DateTime<Utc>> = lines.iter().map(|(_, line)| line.touched_at).collect();
    let evidence: Vec<Value> = lines.iter().map(|(_, line)| line.evidence.clone()).collect();
    sqlx::query!(
        "insert into outcome_credits
             (tenant_id, outcome_id, send_id, campaign_id, kind, contact_id, share, premium, value_cents, touched_at, evidence)
         select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::uuid[], $7::int[], $8::bigint[],
                              $9::bigint[], $10::timestamptz[], $11::jsonb[])",
        &tenants,
        &outcomes,
        &sends,
        &campaigns as &[Option<Uuid>],
        &kinds as &[&str],
        &contacts,
        &shares,
        &premiums as &[Option<i64>],
        &values as &[Option<i64>],
        &times,
        &evidence,
    )
    .execute(db)
    .await
    .map(drop)
}

async fn keep_history(db: &mut PgConnection, restated: &[&Finding<'_>]) -> sqlx::Result<()> {
    let tenants: Vec<Uuid> = restated.iter().map(|finding| finding.due.tenant_id).collect();
    let outcomes: Vec<Uuid> = restated.iter().map(|finding| finding.due.id).collect();
    let revisions: Vec<i32> = restated.iter().map(|finding| finding.due.revision + 1).collect();
    let reasons: Vec<&str> = restated.iter().map(|finding| finding.due.credit_reason.as_str()).collect();
    let models: Vec<&str> = restated.iter().map(|finding| finding.policy.model.as_str()).collect();
    let click_days: Vec<i32> = restated.iter().map(|finding| finding.policy.click_days).collect();
    let delivery_days: Vec<i32> = restated.iter().map(|finding| finding.policy.delivery_days).collect();
    let rules: Vec<Option<&str>> = restated.iter().map(|finding| finding.rule.map(model::Rule::as_str)).collect();
    let credits: Vec<Value> = restated.iter().map(|finding| with_amounts(&finding.after)).collect();
    sqlx::query!(
        "insert into outcome_restatements (tenant_id, outcome_id, revision, reason, model, click_days, delivery_days, rule, credits)
         select * from unnest($1::uuid[], $2::uuid[], $3::int[], $4::text[], $5::text[], $6::int[], $7::int[], $8::text[], $9::jsonb[])",
        &tenants,
        &outcomes,
        &revisions,
        &reasons as &[&str],
        &models as &[&str],
        &click_days,
        &delivery_days,
        &rules as &[Option<&str>],
        &credits,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Whole numbers, as the ledger has them.
fn with_amounts(lines: &[Line]) -> Value {
    let line = |line: &Line| {
        json!({
            "send_id": line.send_id, "campaign_id": line.campaign_id, "share": line.share, "premium": line.premium,
            "value_cents": line.value_cents,
        })
    };
    lines.iter().map(line).collect()
}

/// The notices that become `outcome.credited`: one for each restatement, under an id that follows from it.
async fn tell(db: &mut PgConnection, restated: &[&Finding<'_>]) -> sqlx::Result<()> {
    let tenants: Vec<Uuid> = restated.iter().map(|finding| finding.due.tenant_id).collect();
    let ids: Vec<Uuid> = restated
        .iter()
        .map(|finding| Uuid::new_v5(&finding.due.id, format!("credit-{}", finding.due.revision + 1).as_bytes()))
        .collect();
    let contacts: Vec<Option<Uuid>> =
        restated.iter().map(|finding| finding.contact.as_ref().map(|(contact, _)| *contact)).collect();
    let outcomes: Vec<Uuid> = restated.iter().map(|finding| finding.due.id).collect();
    let data: Vec<Value> = restated.iter().map(|finding| told(finding)).collect();
    sqlx::query!(
        "insert into notices (tenant_id, id, type, contact_id, subject_id, data)
         select w.tenant_id, w.id, 'outcome.credited', w.contact_id, w.subject_id, w.data
         from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::jsonb[]) as w (tenant_id, id, contact_id, subject_id, data)
         on conflict do nothing",
        &tenants,
        &ids,
        &contacts as &[Option<Uuid>],
        &outcomes,
        &data,
    )
    .execute(db)
    .await
    .map(drop)
}

fn told(finding: &Finding<'_>) -> Value {
    let shares = |lines: &[Line]| -> Value {
        let line = |line: &Line| {
            json!({
                "send_id": line.send_id, "campaign_id": line.campaign_id,
                "share": f64::from(line.share) / SHARE_WHOLE as f64,
                "premium_amount": line.premium.map(|premium| Premium(premium).dollars()), "value_cents": line.value_cents,
            })
        };
        lines.iter().map(line).collect()
    };
    json!({
        "outcome_id": finding.due.id, "outcome_type": finding.due.outcome_type, "revision": finding.due.revision + 1,
        "reason": finding.due.credit_reason, "model": finding.policy.model, "rule": finding.rule.map(model::Rule::as_str),
        "before": shares(&finding.before), "after": shares(&finding.after),
    })
}

async fn look_done(db: &mut PgConnection, findings: &[Finding<'_>]) -> sqlx::Result<()> {
    let tenants: Vec<Uuid> = findings.iter().map(|finding| finding.due.tenant_id).collect();
    let ids: Vec<Uuid> = findings.iter().map(|finding| finding.due.id).collect();
    let contacts: Vec<Option<Uuid>> =
        findings.iter().map(|finding| finding.contact.as_ref().map(|(contact, _)| *contact)).collect();
    let keys: Vec<Option<&str>> =
        findings.iter().map(|finding| finding.contact.as_ref().map(|(_, key)| key.as_str())).collect();
    let next: Vec<Option<i32>> = findings.iter().map(Finding::next_look).collect();
    let restated: Vec<bool> = findings.iter().map(Finding::is_restated).collect();
    let models: Vec<&str> = findings.iter().map(|finding| finding.policy.model.as_str()).collect();
    let click_days: Vec<i32> = findings.iter().map(|finding| finding.policy.click_days).collect();
    let delivery_days: Vec<i32> = findings.iter().map(|finding| finding.policy.delivery_days).collect();
    let rules: Vec<Option<&str>> = findings.iter().map(|finding| finding.rule.map(model::Rule::as_str)).collect();
    let booked: Vec<Booked> = findings.iter().map(Finding::booked_after).collect();
    let types: Vec<&str> = booked.iter().map(|booked| booked.outcome_type.as_str()).collect();
    let hours: Vec<DateTime<Utc>> = booked.iter().map(|booked| booked.hour).collect();
    let premiums: Vec<i64> = booked.iter().map(|booked| booked.premium).collect();
    let values: Vec<i64> = booked.iter().map(|booked| booked.value_cents).collect();
    sqlx::query_file!(
        "queries/look_done.sql",
        &tenants,
        &ids,
        &contacts as &[Option<Uuid>],
        &keys as &[Option<&str>],
        &next as &[Option<i32>],
        &restated,
        &models as &[&str],
        &click_days,
        &delivery_days,
        &rules as &[Option<&str>],
        &types as &[&str],
        &hours,
        &premiums,
        &values,
    )
    .execute(db)
    .await
    .map(drop)
}
