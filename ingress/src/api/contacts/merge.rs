//! `POST /v1/contacts/{id}/merge`: two contacts that are one person become one. The merged contact keeps its row and its address, so that
//! its history stays readable, and its id leads to the survivor. It is out of every audience, and campaign mail that is owed to it goes to
//! the survivor; mail that the person asked for still reaches its address.

use ledger::{
    confirmations, merged_mail,
    suppressions::{self, NewSuppression, SuppressionReason},
};
use runtime::db::WAIT_BRIEFLY;
use schemars::JsonSchema;
use schemas::action::SuppressionScope;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    confirmation,
    input::is_source_of_mail,
    record,
    store::{self, MARKETING_STATUS_CHANGED, NewValues},
};
use crate::pipeline::{ApiReply, Id, RequestContext, error::ApiError};

/// What the survivor takes from the merged contact where it has nothing itself.
const TAKEN: &[&str] = &[
    "external_id",
    "first_name",
    "last_name",
    "title",
    "phone",
    "company",
    "dot_number",
    "timezone",
    "locale",
    "lifecycle_stage",
];
const CONSENT: &[&str] = &["consent_basis", "consent_at", "consent_source", "consent_description", "consent_evidence"];

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ContactMerge {
    /// The other contact, which becomes part of this one.
    contact_id: Id,
}

/// Merges the contact of the body into that of the path. Harmless to repeat.
pub(super) async fn merge(ctx: &mut RequestContext, body: ContactMerge) -> Result<ApiReply, ApiError> {
    let (tenant, asked) = (ctx.tenant, ctx.id("contact")?);
    let (survivor, merged) = living(ctx.db(), tenant, asked, body.contact_id.0).await?;
    if survivor == merged {
        if asked == body.contact_id.0 {
            return Err(ApiError::invalid("contact_id", "same", "is the contact itself"));
        }
        return ApiReply::single(record::one(ctx.db(), tenant, survivor).await?);
    }
    // The survivor takes its place in lists and tags: it does not join them, and no sequence starts by that.
    sqlx::query!("select set_config('app.starts_nothing', 'on', true)").fetch_one(ctx.db()).await?;
    // Campaigns and enrollments are locked before contacts, as everywhere: a launch that is being written and a step that is being taken are
    // waited for. A pause waits for the campaigns that are locked: they are not held for as long as an import holds a contact, or a launch
    // another campaign.
    sqlx::raw_sql(WAIT_BRIEFLY).execute(ctx.db()).await?;
    let campaigns = merged_mail::lock_owing_campaigns(ctx.db(), tenant, merged).await?;
    if campaigns.is_empty() {
        sqlx::raw_sql("set local lock_timeout to default").execute(ctx.db()).await?;
    } else {
        // Its mail would leave under new ids, and may have been sent before a restore.
        let is_held = sqlx::query_scalar!(r#"select held_at is not null as "held!" from ledger"#);
        if is_held.fetch_one(ctx.db()).await? {
            let detail = "the ledger is paused after a restore: merge again when it is released";
            return Err(ApiError::unavailable().detail(detail));
        }
    }
    sqlx::query!(
        "select from enrollments where tenant_id = $1 and contact_id = any ($2) and status in ('active', 'paused')
         order by id for update",
        tenant,
        &[survivor, merged],
    )
    .execute(ctx.db())
    .await?;
    let Some((kept, gone)) = lock_both(ctx.db(), tenant, survivor, merged).await? else {
        // The same merge, or its opposite, came first; or one of the two is part of a third contact now, which a repeat finds.
        let (survivor, merged) = living(ctx.db(), tenant, asked, body.contact_id.0).await?;
        if survivor != merged {
            return Err(ApiError::unavailable());
        }
        return ApiReply::single(record::one(ctx.db(), tenant, survivor).await?);
    };
    if merged_mail::is_being_sent(ctx.db(), tenant, merged, &campaigns).await? {
        return Err(ApiError::unavailable().detail("mail to the contact is under way: merge again in a moment"));
    }
    let (columns, fields) = (taken_columns(&kept, &gone), missing_fields(&kept, &gone));
    move_memberships(ctx.db(), tenant, survivor, merged).await?;
    move_facts(ctx.db(), tenant, survivor, merged).await?;
    merged_mail::transfer_owed(ctx.db(), tenant, (merged, survivor), &campaigns).await?;
    move_enrollments(ctx.db(), tenant, survivor, merged).await?;
    // The contact is a part of the survivor, with those that were merged into it before. An `external_id` that the survivor does not take
    // stays with the contact, and leads to the survivor.
    sqlx::query!(
        "update contacts
         set status = 'merged', merged_into = $2, external_id = case when id = $3 and $4 then null else external_id end, updated_at = now()
         where tenant_id = $1 and (id = $3 or merged_into = $3)",
        tenant,
        survivor,
        merged,
        columns.contains_key("external_id"),
    )
    .execute(ctx.db())
    .await?;
    let was_asked = confirmations::withdraw(ctx.db(), tenant, merged).await?;
    let values = NewValues { id: survivor, columns: &columns, fields: &fields };
    store::update(ctx.db(), tenant, &[values]).await.map_err(store::external_id_race)?;
    copy_suppressions(ctx.db(), tenant, text(&gone, "address"), text(&kept, "address")).await?;
    if was_asked {
        // The link in the other's mail proves nothing about the address that is left.
        confirmation::request(ctx, &[survivor]).await?;
    }
    ctx.audit("contact.merged", &survivor.to_string(), json!({"merged": merged})).await?;
    let (from, to) = (&kept["marketing_status"], &columns["marketing_status"]);
    if from != to {
        ctx.audit(MARKETING_STATUS_CHANGED, &survivor.to_string(), json!({"from": from, "to": to})).await?;
    }
    ApiReply::single(record::one(ctx.db(), tenant, survivor).await?)
}

fn text<'a>(row: &'a Value, column: &str) -> &'a str {
    row[column].as_str().unwrap_or_default()
}

/// What the survivor gets: values that it lacks, and the stricter consent with what proves it. Consent that is `unstated` is no consent of
/// either kind, and yields to what the other row says. The survivor is active if one of the two is.
fn taken_columns(kept: &Value, gone: &Value) -> Map<String, Value> {
    let mut columns = Map::new();
    let mut take = |names: &[&str]| {
        columns.extend(names.iter().map(|name| ((*name).to_owned(), gone[*name].clone())));
    };
    for name in TAKEN.iter().filter(|name| kept[**name].is_null() && !gone[**name].is_null()) {
        take(&[name]);
    }
    let strictness = |row: &Value| match text(row, "marketing_status") {
        "unsubscribed" => 3,
        "pending" if row["is_unstated"] == true => 0,
        "pending" => 2,
        _ => 1,
    };
    let is_stricter = strictness(gone) > strictness(kept);
    let knows_more = CONSENT.iter().all(|name| kept[*name].is_null()) && strictness(gone) == strictness(kept);
    if is_stricter || knows_more {
        take(CONSENT);
    }
    let stricter = if is_stricter { gone } else { kept };
    columns.insert("marketing_status".to_owned(), stricter["marketing_status"].clone());
    // A contact that a product added stays one, whichever of the two is known from mail only. Always stated: see `update_contacts.sql`.
    let is_of_mail = |row: &Value| is_source_of_mail(text(row, "source"));
    let takes_source = (kept["source"].is_null() || is_of_mail(kept)) && !is_of_mail(gone);
    let of_source = if takes_source { gone } else { kept };
    // That a confirmation was asked for says it of the other row; that does not move, so the source says it.
    let is_stated = text(stricter, "marketing_status") == "pending" && stricter["is_unstated"] != true;
    let source = if is_stated && is_of_mail(of_source) { json!("api") } else { of_source["source"].clone() };
    columns.insert("source".to_owned(), source);
    let is_active = [kept, gone].iter().any(|row| text(row, "status") == "active");
    columns.insert("status".to_owned(), json!(if is_active { "active" } else { "archived" }));
    columns
}

/// The fields that only the merged contact has.
fn missing_fields(kept: &Value, gone: &Value) -> Map<String, Value> {
    let fields = gone["fields"].as_object().cloned().unwrap_or_default();
    fields.into_iter().filter(|(key, _)| kept["fields"].get(key).is_none()).collect()
}

/// The contacts that two ids lead to: themselves, or those that they were merged into.
///
/// # Errors
/// 404 `contact_not_found`: one of them does not exist, or is erased.
async fn living(db: &mut PgConnection, tenant: Uuid, one: Uuid, other: Uuid) -> Result<(Uuid, Uuid), ApiError> {
    let found = sqlx::query!(
        // Row security keeps a `coalesce` out of the condition of an index.
        r#"select named.id as "named!", c.id as "id!" from contacts named
           join contacts c on c.tenant_id = $1 and c.id = case when named.merged_into is null then named.id else named.merged_into end
           where named.tenant_id = $1 and named.id = any ($2) and c.status in ('active', 'archived')"#,
        tenant,
        &[one, other],
    )
    .fetch_all(db)
    .await?;
    let of = |id: Uuid| found.iter().find(|row| row.named == id).map(|row| row.id);
    of(one).zip(of(other)).ok_or_else(|| ApiError::not_found("contact"))
}

/// The rows of the survivor and of the other, locked in the order of their ids, and those that were merged into the other before. `None`:
/// while this waited, one of the two was merged or erased. `is_unstated`: mail made the contact, and nothing was said of its consent yet
/// (`unstated_consent`).
async fn lock_both(
    db: &mut PgConnection,
    tenant: Uuid,
    survivor: Uuid,
    merged: Uuid,
) -> sqlx::Result<Option<(Value, Value)>> {
    sqlx::query!(
        "select from contacts c
         where c.tenant_id = $1 and (c.id = any ($2) and c.status in ('active', 'archived') or c.merged_into = $3)
         order by c.id for update",
        tenant,
        &[survivor, merged],
        merged,
    )
    .execute(&mut *db)
    .await?;
    // A statement of its own: it sees what the locks waited for.
    let rows = sqlx::query!(
        r#"select c.id,
                  to_jsonb(c) || jsonb_build_object('is_unstated', exists (select from unstated_consent(c))) as "row!"
           from contacts c
           where c.tenant_id = $1 and c.id = any ($2) and c.status in ('active', 'archived')"#,
        tenant,
        &[survivor, merged],
    )
    .fetch_all(db)
    .await?;
    let row = |id| rows.iter().find(|row| row.id == id).map(|row| row.row.clone());
    Ok(row(survivor).zip(row(merged)))
}

/// The survivor is in the audiences of both. A topic that one of them left is left.
async fn move_memberships(db: &mut PgConnection, tenant: Uuid, survivor: Uuid, merged: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into topic_opt_outs (tenant_id, audience_id, contact_id, send_id, left_at)
         select tenant_id, audience_id, $2, send_id, left_at from topic_opt_outs where tenant_id = $1 and contact_id = $3
         on conflict do nothing",
        tenant,
        survivor,
        merged,
    )
    .execute(&mut *db)
    .await?;
    // Held: one that is removed meanwhile takes no members.
    sqlx::query!(
        "select from audiences a
         where a.tenant_id = $1 and a.id in (select m.audience_id from audience_members m where m.tenant_id = $1 and m.contact_id = $2)
         order by a.id for key share",
        tenant,
        merged,
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "with moved as (delete from audience_members where tenant_id = $1 and contact_id = $3 returning audience_id)
         insert into audience_members (tenant_id, audience_id, contact_id)
         select $1, a.id, $2 from moved join audiences a on a.tenant_id = $1 and a.id = moved.audience_id and a.deleted_at is null
         order by a.id on conflict do nothing",
        tenant,
        survivor,
        merged,
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "delete from audience_members m using topic_opt_outs d
         where m.tenant_id = $1 and m.contact_id = $2
           and d.tenant_id = $1 and d.contact_id = $2 and d.audience_id = m.audience_id",
        tenant,
        survivor,
    )
    .execute(db)
    .await
    .map(drop)
}

/// What segments ask about the past, and what the frequency cap counts, is the survivor's. The sends are found as erasure finds them; those
/// of contacts that were merged into the other before are among them.
async fn move_facts(db: &mut PgConnection, tenant: Uuid, survivor: Uuid, merged: Uuid) -> sqlx::Result<()> {
    let earlier = store::merged(&mut *db, tenant, merged).await?;
    let mailed: Vec<Uuid> = earlier.into_iter().map(|(id, _)| id).chain([merged]).collect();
    sqlx::query!(
        "update contact_facts f set contact_id = $2
         from (
             select s.id from sends s where s.tenant_id = $1 and s.contact_id = any ($4) and s.campaign_id is null
             union all
             select s.id from campaigns c
             cross join lateral (
                 select s.id from sends s
                 where s.tenant_id = $1 and s.campaign_id = c.id and s.contact_id = any ($4) and s.month = c.month
                 offset 0
             ) s
             where c.tenant_id = $1
         ) own
         where f.tenant_id = $1 and f.send_id = own.id and f.contact_id = $3",
        tenant,
        survivor,
        merged,
        &mailed,
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "update capped_sends set contact_id = $2 where tenant_id = $1 and contact_id = $3",
        tenant,
        survivor,
        merged,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The survivor goes on where the other was, unless it, or one that was merged into it before, is or was in the same sequence, however that
/// ended: no person gets a step twice, and one that has left stays out.
async fn move_enrollments(db: &mut PgConnection, tenant: Uuid, survivor: Uuid, merged: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "update enrollments e set contact_id = $2, updated_at = now()
         where e.tenant_id = $1 and e.contact_id = $3 and e.status in ('active', 'paused')
           and not exists (
               select from enrollments o
               where o.tenant_id = $1 and o.sequence_id = e.sequence_id
                 and o.contact_id in (select $2::uuid union all select id from contacts where tenant_id = $1 and merged_into = $2))
           and not exists (
               select from past_enrollments o
               where o.tenant_id = $1 and o.sequence_id = e.sequence_id
                 and o.contact_id in (select $2::uuid union all select id from contacts where tenant_id = $1 and merged_into = $2))",
        tenant,
        survivor,
        merged,
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "update enrollments
         set status = 'exited', exit_reason = 'manual', next_action_at = null, claim_token = null, ended_at = now(), updated_at = now()
         where tenant_id = $1 and contact_id = $2 and status in ('active', 'paused')",
        tenant,
        merged,
    )
    .execute(db)
    .await
    .map(drop)
}

/// What is against mailing the person holds for the address that is left. Bounces are about an address, and stay with theirs. Later
/// suppressions of the merged address follow (`ledger::suppressions::suppress`).
async fn copy_suppressions(db: &mut PgConnection, tenant: Uuid, from: &str, to: &str) -> sqlx::Result<()> {
    let rows = sqlx::query!(
        "select reason, scope, source, note, send_id, expires_at from suppressions
         where tenant_id = $1 and address = $2 and reason in ('unsubscribe', 'complaint', 'manual', 'import')
           and is_in_force(expires_at)",
        tenant,
        from,
    )
    .fetch_all(&mut *db)
    .await?;
    let copies = rows.into_iter().filter_map(|row| {
        // The recipient's own opt-out stays one that only the recipient lifts.
        let source = if row.source == "recipient" { "recipient" } else { "api" };
        let scope = if row.scope == "all" { SuppressionScope::All } else { SuppressionScope::Marketing };
        let new = NewSuppression::new(tenant, to.to_owned(), SuppressionReason::parse(&row.reason)?, source);
        Some(NewSuppression { scope, note: row.note, send_id: row.send_id, expires_at: row.expires_at, ..new })
    });
    suppressions::suppress(db, copies.collect()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("subscribed", "unsubscribed", "unsubscribed")]
    #[case("subscribed", "pending", "pending")]
    #[case("pending", "subscribed", "pending")]
    #[case("unsubscribed", "subscribed", "unsubscribed")]
    #[case("pending", "unsubscribed", "unsubscribed")]
    #[case("subscribed", "subscribed", "subscribed")]
    fn the_stricter_consent_wins(#[case] kept: &str, #[case] gone: &str, #[case] expected: &str) {
        let row = |status: &str, basis: &str| json!({"marketing_status": status, "status": "archived", "consent_basis": basis});
        let columns = taken_columns(&row(kept, "a"), &row(gone, "b"));
        assert_eq!(columns["marketing_status"], expected);
        assert_eq!(columns.get("consent_basis"), (expected != kept).then(|| json!("b")).as_ref());
        assert_eq!(columns["status"], "archived");
    }

    #[rstest]
    #[case(None, Some("form"), Some("form"))]
    #[case(None, Some("message"), None)]
    #[case(Some("transactional"), Some("form"), Some("form"))]
    #[case(Some("transactional"), None, None)]
    #[case(Some("transactional"), Some("message"), Some("transactional"))]
    #[case(Some("form"), Some("import"), Some("form"))]
    fn a_contact_that_a_product_added_stays_one(
        #[case] kept: Option<&str>,
        #[case] gone: Option<&str>,
        #[case] expected: Option<&str>,
    ) {
        let row = |source: Option<&str>, is_unstated: bool| json!({"marketing_status": "pending", "status": "active", "source": source, "is_unstated": is_unstated});
        assert_eq!(taken_columns(&row(kept, true), &row(gone, true))["source"].as_str(), expected);
        let asked = taken_columns(&row(Some("transactional"), true), &row(Some("message"), false));
        assert_eq!(asked["source"], json!("api"), "it was asked to confirm: no later mail subscribes it");
    }

    #[rstest]
    #[case("subscribed")]
    #[case("pending")]
    #[case("unsubscribed")]
    fn consent_that_nothing_was_said_of_yields(#[case] stated: &str) {
        let made_by_mail =
            json!({"marketing_status": "pending", "status": "active", "is_unstated": true, "consent_basis": "a"});
        let customer =
            json!({"marketing_status": stated, "status": "active", "is_unstated": false, "consent_basis": "b"});
        let columns = taken_columns(&customer, &made_by_mail);
        assert_eq!((&columns["marketing_status"], columns.get("consent_basis")), (&json!(stated), None));
        let columns = taken_columns(&made_by_mail, &customer);
        assert_eq!((&columns["marketing_status"], &columns["consent_basis"]), (&json!(stated), &json!("b")));
    }

    #[test]
    fn the_survivor_takes_what_it_lacks() {
        let kept = json!({"first_name": "Ann", "phone": null, "status": "archived", "fields": {"plan": "pro"}});
        let gone = json!({"first_name": "A.", "phone": "+1", "status": "active", "external_id": "7", "fields": {"plan": "free", "seats": 3}});
        let columns = taken_columns(&kept, &gone);
        assert_eq!(
            (columns.get("first_name"), &columns["phone"], &columns["external_id"]),
            (None, &json!("+1"), &json!("7"))
        );
        assert_eq!(columns["status"], "active");
        assert_eq!(Value::Object(missing_fields(&kept, &gone)), json!({"seats": 3}));
    }
}
