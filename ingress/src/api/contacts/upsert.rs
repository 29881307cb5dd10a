//! Contacts created or updated, one or many: a handful of statements for each call, and a result for each contact. A contact is
//! found by the product's own id, then by its address.

use std::collections::{BTreeSet, HashMap, HashSet};

use chrono::{DateTime, Utc};
use ledger::confirmations;
use schemas::{new_id, parse_id};
use serde_json::{Map, Value, json};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use super::{
    MARKETING_STATUS_CHANGED,
    input::{Consent, ContactMarketingStatus, OnExisting, WantedContact},
    store::{self, NewValues},
};
use crate::{
    api::audiences::AudienceKind,
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

/// A contact that exists, as far as an upsert asks. Its row is locked.
#[derive(Debug, Clone)]
struct KnownContact {
    id: Uuid,
    address: String,
    external_id: Option<String>,
    /// Of contacts that were merged into it.
    merged_addresses: Vec<String>,
    /// Of contacts that were merged into it, and kept by them.
    merged_external_ids: Vec<String>,
    marketing_status: String,
    consent_at: Option<DateTime<Utc>>,
    /// The recipient unsubscribed through a link in mail.
    left_by_own_hand: bool,
}

/// The contacts that exist, by both keys.
#[derive(Debug, Default)]
struct KnownContacts {
    contacts: Vec<KnownContact>,
    by_address: HashMap<String, usize>,
    by_external_id: HashMap<String, usize>,
}

impl KnownContacts {
    fn new(contacts: Vec<KnownContact>) -> Self {
        let addresses = |(place, contact): (usize, &KnownContact)| {
            let all: Vec<String> = [&contact.address].into_iter().chain(&contact.merged_addresses).cloned().collect();
            all.into_iter().map(move |address| (address, place))
        };
        let by_address = contacts.iter().enumerate().flat_map(addresses).collect();
        let external_ids = |(place, contact): (usize, &KnownContact)| {
            let all: Vec<String> = contact.external_id.iter().chain(&contact.merged_external_ids).cloned().collect();
            all.into_iter().map(move |id| (id, place))
        };
        let by_external_id = contacts.iter().enumerate().flat_map(external_ids).collect();
        Self { contacts, by_address, by_external_id }
    }

    fn with_address(&self, address: Option<&str>) -> Option<&KnownContact> {
        self.contacts.get(*self.by_address.get(address?)?)
    }

    fn with_external_id(&self, id: Option<&str>) -> Option<&KnownContact> {
        self.contacts.get(*self.by_external_id.get(id?)?)
    }

    /// The contact that is meant; `None`: there is none.
    fn find(&self, wanted: &WantedContact) -> Result<Option<&KnownContact>, ApiError> {
        let of_id = self.with_external_id(wanted.external_id.as_deref());
        let of_address = self.with_address(wanted.address.as_deref());
        match (of_id, of_address) {
            (Some(of_id), Some(of_address)) if of_id.id != of_address.id => Err(store::external_id_taken()),
            (Some(_), None) if wanted.address.is_some() => Err(ApiError::conflict("address_differs")
                .at("email", "the contact with this external_id has another address, which does not change")),
            (None, Some(of_address)) if wanted.external_id.is_some() && of_address.external_id.is_some() => {
                Err(ApiError::conflict("external_id_differs").at(
                    "external_id",
                    "the contact with this address has another one; PATCH /v1/contacts/{id} changes it",
                ))
            }
            (None, None) if wanted.address.is_none() => Err(ApiError::invalid(
                "email",
                "required",
                "no contact has this external_id, and a new one needs an address",
            )),
            (of_id, of_address) => Ok(of_id.or(of_address)),
        }
    }
}

/// What to do for one contact.
#[derive(Debug)]
enum UpsertAction {
    /// The row of a new contact.
    Create { id: Uuid, row: Value },
    /// New values of a contact.
    Update {
        id: Uuid,
        columns: Map<String, Value>,
        fields: Map<String, Value>,
        status_change: Option<StatusChange>,
        joins: bool,
    },
}

impl UpsertAction {
    fn contact(&self) -> Uuid {
        match self {
            Self::Create { id, .. } | Self::Update { id, .. } => *id,
        }
    }
}

/// A change of a contact's consent, for the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StatusChange {
    from: String,
    to: &'static str,
}

/// Decides what to do for one contact. `default`: what happens to one that exists, unless the caller says it.
fn decide(wanted: &WantedContact, known: &KnownContacts, default: OnExisting) -> Result<UpsertAction, ApiError> {
    match known.find(wanted)? {
        Some(contact) => update_of(wanted, contact, wanted.on_existing.unwrap_or(default)),
        None => Ok(creation_of(wanted)),
    }
}

fn creation_of(wanted: &WantedContact) -> UpsertAction {
    let id = new_id();
    let mut row = wanted.columns.clone();
    row.extend(wanted.consent.iter().flat_map(Consent::columns));
    let status = match wanted.marketing_status {
        _ if wanted.require_verification => ContactMarketingStatus::Pending,
        status => status.unwrap_or(ContactMarketingStatus::Subscribed),
    };
    row.insert("id".to_owned(), json!(id));
    row.insert("address".to_owned(), json!(wanted.address));
    row.insert("external_id".to_owned(), json!(wanted.external_id));
    row.insert("marketing_status".to_owned(), json!(status.as_str()));
    row.insert("fields".to_owned(), json!(wanted.fields));
    UpsertAction::Create { id, row: Value::Object(row) }
}

fn update_of(wanted: &WantedContact, known: &KnownContact, existing: OnExisting) -> Result<UpsertAction, ApiError> {
    let updates = existing == OnExisting::Update;
    let mut to = new_status(wanted.marketing_status, known, updates)?;
    if wanted.require_verification && to == Some(ContactMarketingStatus::Subscribed) {
        to = None;
    }
    let confirms = wanted.require_verification && known.marketing_status == ContactMarketingStatus::Pending.as_str();
    // Consent that is older than what is known says nothing new; a kept contact takes it only together with its agreement, or with
    // the sign-up that it is to confirm.
    let is_newer = |consent: &&Consent| consent.at.is_none_or(|at| known.consent_at.is_none_or(|before| at >= before));
    let consent = wanted.consent.as_ref().filter(is_newer).filter(|_| updates || to.is_some() || confirms);
    let (mut columns, fields) =
        if updates { (wanted.columns.clone(), wanted.fields.clone()) } else { (Map::new(), Map::new()) };
    // Only what is stated: a basis alone does not delete the time.
    columns.extend(consent.map(Consent::columns).into_iter().flatten().filter(|(_, value)| !value.is_null()));
    columns.insert("status".to_owned(), json!("active"));
    // An id that a merged contact keeps leads here as it is.
    let is_own = |id: &&String| !known.merged_external_ids.contains(id);
    if let Some(id) = wanted.external_id.as_ref().filter(|_| updates).filter(is_own) {
        columns.insert("external_id".to_owned(), json!(id));
    }
    if let Some(to) = to {
        columns.insert("marketing_status".to_owned(), json!(to.as_str()));
    }
    let status_change = to.map(|to| StatusChange { from: known.marketing_status.clone(), to: to.as_str() });
    Ok(UpsertAction::Update { id: known.id, columns, fields, status_change, joins: updates })
}

/// The consent that a contact gets, if it changes. Who unsubscribed is not subscribed here: an update says so, a kept contact stays as
/// it is. An opt-out always counts.
fn new_status(
    wanted: Option<ContactMarketingStatus>,
    known: &KnownContact,
    updates: bool,
) -> Result<Option<ContactMarketingStatus>, ApiError> {
    use ContactMarketingStatus::{Pending, Subscribed, Unsubscribed};
    let Some(wanted) = wanted.filter(|wanted| wanted.as_str() != known.marketing_status) else { return Ok(None) };
    let has_left = known.marketing_status == Unsubscribed.as_str() || known.left_by_own_hand;
    match wanted {
        Subscribed if has_left && !updates => Ok(None),
        Subscribed if known.left_by_own_hand => Err(ApiError::conflict("unsubscribed_by_recipient")
            .at("marketing_status", "the recipient unsubscribed; only the recipient can opt in again")),
        Subscribed if has_left => Err(ApiError::conflict("contact_unsubscribed")
            .at("marketing_status", "the contact is unsubscribed; PATCH /v1/contacts/{id} takes that back")),
        Subscribed => Ok(Some(Subscribed)),
        // Being unsubscribed is more than pending.
        Unsubscribed | Pending if !updates => Ok(None),
        Unsubscribed => Ok(Some(Unsubscribed)),
        Pending => Ok((!has_left).then_some(Pending)),
    }
}

/// Decides for all. Of several that mean one contact the first counts.
fn decide_all(
    wanted: &[Result<WantedContact, ApiError>],
    known: &KnownContacts,
    default: OnExisting,
) -> Vec<Result<UpsertAction, ApiError>> {
    let (mut contacts, mut addresses, mut external_ids) = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut decide_one = |wanted: &WantedContact| {
        let action = decide(wanted, known, default)?;
        let is_new = contacts.insert(action.contact())
            & wanted.address.as_deref().is_none_or(|address| addresses.insert(address.to_owned()))
            & wanted.external_id.as_deref().is_none_or(|id| external_ids.insert(id.to_owned()));
        let path = if wanted.external_id.is_some() { "external_id" } else { "email" };
        if is_new { Ok(action) } else { Err(ApiError::invalid(path, "duplicate", "stands in the batch before")) }
    };
    wanted.iter().map(|wanted| decide_one(wanted.as_ref().map_err(ApiError::clone)?)).collect()
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
    let changed = update(ctx.db(), tenant, &actions, &created).await?;
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
            r#"select c.id, c.address, c.external_id, c.marketing_status, c.consent_at,
                      array(select m.address from contacts m where m.tenant_id = $1 and m.merged_into = c.id)
                          as "merged_addresses!",
                      array(select m.external_id from contacts m
                            where m.tenant_id = $1 and m.merged_into = c.id and m.external_id is not null)
                          as "merged_external_ids!", exists (
                   select from suppressions s
                   where s.tenant_id = $1 and s.address = c.address and s.reason = 'unsubscribe' and s.source = 'recipient'
                     and (s.expires_at is null or s.expires_at > now())
               ) as "left_by_own_hand!"
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
            return Ok(KnownContacts::new(known));
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

/// Answers which had other values before.
async fn update(
    db: &mut PgConnection,
    tenant: Uuid,
    actions: &[Result<UpsertAction, ApiError>],
    created: &HashSet<Uuid>,
) -> Result<HashSet<Uuid>, ApiError> {
    let values = actions.iter().flatten().filter_map(|action| match action {
        UpsertAction::Update { id, columns, fields, .. } if !created.contains(id) => {
            Some(NewValues { id: *id, columns, fields })
        }
        _ => None,
    });
    store::update(db, tenant, &values.collect::<Vec<_>>()).await
}

/// The lists and tags that contacts name.
fn named(wanted: &WantedContact) -> impl Iterator<Item = (AudienceKind, &str)> {
    let lists = wanted.lists.iter().map(|name| (AudienceKind::List, name.trim()));
    lists.chain(wanted.tags.iter().map(|name| (AudienceKind::Tag, name.trim())))
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
    let rows = sqlx::query!(
        "select id, kind from audiences where tenant_id = $1 and id = any ($2) and deleted_at is null
         order by id for key share",
        tenant,
        &ids
    );
    let known: HashMap<Uuid, String> = rows.fetch_all(db).await?.into_iter().map(|row| (row.id, row.kind)).collect();
    for one in wanted {
        let Ok(contact) = one else { continue };
        let is_known = |kind: AudienceKind, id| known.get(&id).is_some_and(|known| known == kind.as_str());
        let unknown = named(contact).find(|(kind, name)| parse_id(name).is_ok_and(|id| !is_known(*kind, id)));
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
) -> sqlx::Result<HashSet<Uuid>> {
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
        store::ensure_audiences(&mut *db, tenant, kind, &names).await?;
        let rows = sqlx::query!(
            "select id, name from audiences where tenant_id = $1 and kind = $2 and name = any ($3) and deleted_at is null",
            tenant,
            kind.as_str(),
            &names,
        );
        ids.extend(rows.fetch_all(&mut *db).await?.into_iter().map(|row| ((kind.as_str(), row.name), row.id)));
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
    let (tenant, settings) = (ctx.tenant, ctx.ingress.settings.confirmations);
    confirmations::request(ctx.db(), tenant, &asked.collect::<Vec<_>>(), false, &settings).await.map(drop)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn known(address: &str, external_id: Option<&str>, status: &str, left_by_own_hand: bool) -> KnownContact {
        KnownContact {
            id: new_id(),
            address: address.to_owned(),
            external_id: external_id.map(str::to_owned),
            merged_addresses: Vec::new(),
            merged_external_ids: Vec::new(),
            marketing_status: status.to_owned(),
            consent_at: "2026-01-01T00:00:00Z".parse().ok(),
            left_by_own_hand,
        }
    }

    fn wanted(address: Option<&str>, external_id: Option<&str>) -> WantedContact {
        let text = |text: Option<&str>| text.map(str::to_owned);
        WantedContact { address: text(address), external_id: text(external_id), ..WantedContact::default() }
    }

    #[rstest]
    #[case::new(Some("new@x.co"), Some("9"), Ok(None))]
    #[case::by_address(Some("ann@x.co"), None, Ok(Some("ann@x.co")))]
    #[case::by_id(None, Some("1"), Ok(Some("ann@x.co")))]
    #[case::by_both(Some("ann@x.co"), Some("1"), Ok(Some("ann@x.co")))]
    #[case::gets_an_id(Some("bob@x.co"), Some("9"), Ok(Some("bob@x.co")))]
    #[case::ids_of_two(Some("bob@x.co"), Some("1"), Err("external_id_taken"))]
    #[case::another_address(Some("new@x.co"), Some("1"), Err("address_differs"))]
    #[case::another_id(Some("ann@x.co"), Some("9"), Err("external_id_differs"))]
    #[case::unknown_id(None, Some("9"), Err("validation_failed"))]
    fn a_contact_is_found_by_its_id_then_by_its_address(
        #[case] address: Option<&str>,
        #[case] external_id: Option<&str>,
        #[case] expected: Result<Option<&str>, &str>,
    ) {
        let contacts =
            vec![known("ann@x.co", Some("1"), "subscribed", false), known("bob@x.co", None, "subscribed", false)];
        let known = KnownContacts::new(contacts);
        let found = known.find(&wanted(address, external_id));
        let found = found.map(|contact| contact.map(|contact| contact.address.as_str()));
        assert_eq!(found.as_ref().map_err(|error| error.code.as_ref()), expected.as_ref().map_err(|code| *code));
    }

    #[rstest]
    #[case("pending", false, "subscribed", Ok(Some("subscribed")), Some("subscribed"))]
    #[case("pending", true, "subscribed", Err("unsubscribed_by_recipient"), None)]
    #[case("unsubscribed", true, "subscribed", Err("unsubscribed_by_recipient"), None)]
    #[case("unsubscribed", false, "subscribed", Err("contact_unsubscribed"), None)]
    #[case("unsubscribed", false, "pending", Ok(None), None)]
    #[case("subscribed", false, "pending", Ok(Some("pending")), None)]
    #[case("subscribed", false, "unsubscribed", Ok(Some("unsubscribed")), None)]
    #[case("subscribed", true, "subscribed", Ok(None), None)]
    fn a_contact_that_left_is_not_subscribed_again(
        #[case] before: &str,
        #[case] left: bool,
        #[case] status: &str,
        #[case] updated: Result<Option<&str>, &str>,
        #[case] kept: Option<&str>,
    ) {
        let contact = known("ann@x.co", None, before, left);
        let status: ContactMarketingStatus = serde_json::from_value(json!(status)).unwrap();
        let found = new_status(Some(status), &contact, true).map(|to| to.map(ContactMarketingStatus::as_str));
        assert_eq!(found.as_ref().map_err(|error| error.code.as_ref()), updated.as_ref().map_err(|code| *code));
        let found = new_status(Some(status), &contact, false).unwrap();
        assert_eq!(found.map(ContactMarketingStatus::as_str), kept);
    }

    #[rstest]
    #[case("2025-06-01T00:00:00Z", false)]
    #[case("2026-06-01T00:00:00Z", true)]
    fn older_consent_does_not_replace_newer(#[case] at: &str, #[case] taken: bool) {
        let consent = Consent { basis: Some("opt_in".into()), at: at.parse().ok(), ..Consent::default() };
        let wanted = WantedContact { consent: Some(consent), ..wanted(Some("ann@x.co"), None) };
        let known = known("ann@x.co", None, "subscribed", false);
        let UpsertAction::Update { columns, .. } = update_of(&wanted, &known, OnExisting::Update).unwrap() else {
            panic!("the contact exists")
        };
        assert_eq!(columns.contains_key("consent_at"), taken);
        assert!(!columns.contains_key("consent_source"), "what is not stated stays");
    }

    #[test]
    fn of_several_that_mean_one_contact_the_first_counts() {
        let known = KnownContacts::new(vec![known("ann@x.co", Some("1"), "subscribed", false)]);
        let rows = [
            wanted(Some("ann@x.co"), None),
            wanted(None, Some("1")),
            wanted(Some("new@x.co"), Some("2")),
            wanted(Some("other@x.co"), Some("2")),
            wanted(Some("new@x.co"), None),
            wanted(Some("last@x.co"), None),
        ];
        let decided = decide_all(&rows.map(Ok), &known, OnExisting::Update);
        let good: Vec<bool> = decided.iter().map(Result::is_ok).collect();
        assert_eq!(good, [true, false, true, false, false, true]);
    }
}
