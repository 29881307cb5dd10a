//! Contacts created or updated, one or many: a handful of statements for each call, and a result for each contact. A contact is
//! found by the product's own id, then by its address.

use std::collections::{BTreeSet, HashMap, HashSet};

use schemas::{MarketingStatus, parse_id};
use serde_json::{Value, json};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use super::{
    confirmation,
    decide::{KnownContact, KnownContacts, UpsertAction, decide_all},
    input::{OnExisting, WantedContact},
    store::{self, MARKETING_STATUS_CHANGED, NewValues},
};
use crate::{
    api::audiences::held::{AudienceKind, hold_audiences},
    pipeline::{RequestContext, error::ApiError},
};

/// How often contacts are looked for again that another request made at the same moment.
const ROUNDS_MAX: usize = 3;

/// What became of a contact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upserted {
    Created(Uuid),
    Updated(Uuid),
    Unchanged(Uuid),
}

/// Creates or updates contacts, each once; a refused one costs only itself. The order of the results is that of the contacts.
///
/// # Errors
/// When nothing could be done: Postgres is away, or other requests change the same contacts all the time.
pub(super) async fn upsert(
    ctx: &mut RequestContext,
    mut wanted: Vec<Result<WantedContact, ApiError>>,
    default: OnExisting,
) -> Result<Vec<Result<Upserted, ApiError>>, ApiError> {
    let tenant = ctx.tenant;
    refuse_unknown_audiences(ctx.db(), tenant, &mut wanted).await?;
    let mut created = HashSet::new();
    let mut rounds = 0..ROUNDS_MAX;
    let actions = loop {
        rounds.next().ok_or_else(ApiError::unavailable)?;
        let known = find(ctx.db(), tenant, &wanted).await?;
        let actions = decide_all(&wanted, &known, default);
        let new: Vec<&Value> = actions.iter().flatten().filter_map(new_row).collect();
        let made = create(ctx.db(), tenant, &new).await?;
        created.extend(made.iter().copied());
        if made.len() == new.len() {
            break actions;
        }
        // Another request made the others at the same moment: they are found now.
    };
    let values: Vec<NewValues<'_>> =
        actions.iter().flatten().filter_map(|action| new_values(action, &created)).collect();
    let changed = store::update(ctx.db(), tenant, &values).await.map_err(store::external_id_race)?;
    let joined = join(ctx.db(), tenant, &wanted, &actions, &created).await?;
    audit_status_changes(ctx, &actions).await?;
    ask_to_confirm(ctx, &wanted, &actions).await?;
    let result = |action: UpsertAction| match action.contact() {
        id if created.contains(&id) => Upserted::Created(id),
        id if changed.contains(&id) || joined.contains(&id) => Upserted::Updated(id),
        id => Upserted::Unchanged(id),
    };
    Ok(actions.into_iter().map(|action| action.map(result)).collect())
}

fn new_row(action: &UpsertAction) -> Option<&Value> {
    match action {
        UpsertAction::Create { row, .. } => Some(row),
        UpsertAction::Update { .. } => None,
    }
}

/// The new values of a contact that was there before this request.
fn new_values<'a>(action: &'a UpsertAction, created: &HashSet<Uuid>) -> Option<NewValues<'a>> {
    match action {
        UpsertAction::Update { id, columns, fields, .. } if !created.contains(id) => {
            Some(NewValues { id: *id, columns, fields })
        }
        _ => None,
    }
}

/// Finds and locks the contacts that are meant, in the order of their ids. The facts come in a later statement, which sees what the
/// locks waited for: if that is a merge, the names lead elsewhere now, and are looked up once more.
async fn find(
    db: &mut PgConnection,
    tenant: Uuid,
    wanted: &[Result<WantedContact, ApiError>],
) -> Result<KnownContacts, ApiError> {
    let addresses: Vec<String> = wanted.iter().flatten().filter_map(|one| one.address.clone()).collect();
    let external_ids: Vec<String> = wanted.iter().flatten().filter_map(|one| one.external_id.clone()).collect();
    for _ in 0..store::LOOKUPS_MAX {
        let ids = sqlx::query_scalar!(
            "select c.id from contacts c
             where c.tenant_id = $1 and c.status in ('active', 'archived') and c.id in (
                 select coalesce(merged_into, id) from contacts where tenant_id = $1 and address = any ($2)
                 union all
                 select coalesce(merged_into, id) from contacts
                 where tenant_id = $1 and external_id = any ($3) and external_id is not null)
             order by c.id for no key update of c",
            tenant,
            &addresses,
            &external_ids,
        )
        .fetch_all(&mut *db)
        .await?;
        let known = sqlx::query_as!(
            KnownContact,
            r#"select c.id, c.address, c.external_id, c.marketing_status as "marketing_status: MarketingStatus", c.consent_at,
                      array(select m.address from contacts m where m.tenant_id = $1 and m.merged_into = c.id)
                          as "merged_addresses!",
                      array(select m.external_id from contacts m
                            where m.tenant_id = $1 and m.merged_into = c.id and m.external_id is not null)
                          as "merged_external_ids!", exists (select from own_opt_outs($1, c.address)) as "left_by_own_hand!"
               from contacts c
               where c.tenant_id = $1 and c.id in (
                   select coalesce(merged_into, id) from contacts where tenant_id = $1 and address = any ($2)
                   union all
                   select coalesce(merged_into, id) from contacts
                   where tenant_id = $1 and external_id = any ($3) and external_id is not null)"#,
            tenant,
            &addresses,
            &external_ids,
        )
        .fetch_all(&mut *db)
        .await?;
        let locked: HashSet<Uuid> = ids.into_iter().collect();
        if known.iter().all(|contact| locked.contains(&contact.id)) {
            let left = sqlx::query_scalar!(
                r#"select w.address as "address!" from unnest($2::text[]) as w (address)
                   where exists (select from own_opt_outs($1, w.address))"#,
                tenant,
                &addresses,
            )
            .fetch_all(&mut *db)
            .await?;
            return Ok(KnownContacts::new(known, left));
        }
    }
    Err(ApiError::unavailable())
}

/// Answers which were created; the others exist by now.
async fn create(db: &mut PgConnection, tenant: Uuid, rows: &[&Value]) -> sqlx::Result<Vec<Uuid>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    sqlx::query_file_scalar!("queries/create_contacts.sql", tenant, Json(rows) as _).fetch_all(db).await
}

/// The lists and tags that contacts name.
fn named(wanted: &WantedContact) -> impl Iterator<Item = (AudienceKind, &str)> {
    let lists = wanted.lists.iter().map(|name| (AudienceKind::List, name.as_str()));
    lists.chain(wanted.tags.iter().map(|name| (AudienceKind::Tag, name.as_str())))
}

/// Refuses contacts that name a list or tag by an id which the tenant does not have.
async fn refuse_unknown_audiences(
    db: &mut PgConnection,
    tenant: Uuid,
    wanted: &mut [Result<WantedContact, ApiError>],
) -> sqlx::Result<()> {
    let ids: BTreeSet<Uuid> =
        wanted.iter().flatten().flat_map(named).filter_map(|(_, name)| parse_id(name).ok()).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = ids.into_iter().collect();
    let held = hold_audiences(db, tenant, &ids).await?;
    for one in wanted {
        let Ok(contact) = one else { continue };
        let unknown = named(contact).find(|(kind, name)| parse_id(name).is_ok_and(|id| !held.has(*kind, id)));
        if let Some((kind, _)) = unknown {
            let path = format!("{}s", kind.as_str());
            *one = Err(ApiError::not_found(kind.as_str()).at(path, "one of them does not exist"));
        }
    }
    Ok(())
}

/// Puts contacts into the lists and tags that they name, and makes those that are missing. Answers which contacts joined one.
async fn join(
    db: &mut PgConnection,
    tenant: Uuid,
    wanted: &[Result<WantedContact, ApiError>],
    actions: &[Result<UpsertAction, ApiError>],
    created: &HashSet<Uuid>,
) -> Result<HashSet<Uuid>, ApiError> {
    let joins = |action: &UpsertAction| match action {
        UpsertAction::Create { .. } => true,
        UpsertAction::Update { id, joins, .. } => *joins || created.contains(id),
    };
    // A refused contact has its place in both.
    let pairs: Vec<(Uuid, AudienceKind, &str)> = wanted
        .iter()
        .zip(actions)
        .filter_map(|(wanted, action)| wanted.as_ref().ok().zip(action.as_ref().ok()))
        .filter(|(_, action)| joins(action))
        .flat_map(|(wanted, action)| named(wanted).map(|(kind, name)| (action.contact(), kind, name)))
        .collect();
    if pairs.is_empty() {
        return Ok(HashSet::new());
    }
    let mut ids = HashMap::new();
    for kind in [AudienceKind::List, AudienceKind::Tag] {
        let of_kind = pairs.iter().filter(|(_, of, name)| *of == kind && parse_id(name).is_err());
        let names: Vec<String> = of_kind.map(|(.., name)| (*name).to_owned()).collect();
        if names.is_empty() {
            continue;
        }
        let held = store::hold_or_create_audiences(&mut *db, tenant, kind, &names).await?;
        ids.extend(held.into_iter().map(|(name, id)| ((kind.as_str(), name), id)));
    }
    let audience = |kind: AudienceKind, name: &str| {
        parse_id(name).ok().or_else(|| ids.get(&(kind.as_str(), name.to_owned())).copied())
    };
    let (audiences, contacts): (Vec<Uuid>, Vec<Uuid>) =
        pairs.iter().filter_map(|(contact, kind, name)| Some((audience(*kind, name)?, *contact))).unzip();
    let joined = sqlx::query_file_scalar!("queries/join_audiences.sql", tenant, &audiences, &contacts);
    Ok(joined.fetch_all(db).await?.into_iter().collect())
}

/// Asks those who are to confirm their consent, as far as it is pending.
async fn ask_to_confirm(
    ctx: &mut RequestContext,
    wanted: &[Result<WantedContact, ApiError>],
    actions: &[Result<UpsertAction, ApiError>],
) -> sqlx::Result<()> {
    let asked = wanted.iter().zip(actions).filter_map(|(wanted, action)| {
        let (wanted, action) = wanted.as_ref().ok().zip(action.as_ref().ok())?;
        wanted.require_verification.then(|| action.contact())
    });
    confirmation::request(ctx, &asked.collect::<Vec<_>>()).await.map(drop)
}

async fn audit_status_changes(
    ctx: &mut RequestContext,
    actions: &[Result<UpsertAction, ApiError>],
) -> sqlx::Result<()> {
    let changes = actions.iter().flatten().filter_map(|action| match action {
        UpsertAction::Update { id, status_change: Some(change), .. } => {
            Some((id.to_string(), json!({"from": change.from, "to": change.to})))
        }
        _ => None,
    });
    ctx.audit_each(MARKETING_STATUS_CHANGED, changes.collect()).await
}
