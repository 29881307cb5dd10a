//! Which contact is meant, and what becomes of it: decided from what is known, without a query.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use schemas::{MarketingStatus, new_id};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{
    input::{Consent, OnExisting, WantedContact},
    store,
};
use crate::pipeline::error::ApiError;

/// A contact that exists, as far as an upsert asks. Its row is locked.
#[derive(Debug, Clone)]
pub(super) struct KnownContact {
    pub(super) id: Uuid,
    pub(super) address: String,
    pub(super) external_id: Option<String>,
    /// Of contacts that were merged into it.
    pub(super) merged_addresses: Vec<String>,
    /// Of contacts that were merged into it, and kept by them.
    pub(super) merged_external_ids: Vec<String>,
    pub(super) marketing_status: MarketingStatus,
    pub(super) consent_at: Option<DateTime<Utc>>,
    /// The recipient unsubscribed through a link in mail.
    pub(super) left_by_own_hand: bool,
}

/// The contacts that exist, by both keys.
#[derive(Debug, Default)]
pub(super) struct KnownContacts {
    contacts: Vec<KnownContact>,
    by_address: HashMap<String, usize>,
    by_external_id: HashMap<String, usize>,
    /// Addresses of the request whose recipient unsubscribed through a link in mail: it may have outlived an erased contact.
    left_by_own_hand: HashSet<String>,
}

impl KnownContacts {
    pub(super) fn new(contacts: Vec<KnownContact>, left_by_own_hand: Vec<String>) -> Self {
        let (mut by_address, mut by_external_id) = (HashMap::new(), HashMap::new());
        for (place, contact) in contacts.iter().enumerate() {
            let addresses = [&contact.address].into_iter().chain(&contact.merged_addresses);
            by_address.extend(addresses.map(|address| (address.clone(), place)));
            let external_ids = contact.external_id.iter().chain(&contact.merged_external_ids);
            by_external_id.extend(external_ids.map(|id| (id.clone(), place)));
        }
        Self { contacts, by_address, by_external_id, left_by_own_hand: left_by_own_hand.into_iter().collect() }
    }

    /// The contact that is meant; `None`: there is none.
    fn find(&self, wanted: &WantedContact) -> Result<Option<&KnownContact>, ApiError> {
        let by_id = wanted.external_id.as_ref().and_then(|id| self.by_external_id.get(id));
        let by_address = wanted.address.as_ref().and_then(|address| self.by_address.get(address));
        let of_id = by_id.and_then(|place| self.contacts.get(*place));
        let of_address = by_address.and_then(|place| self.contacts.get(*place));
        match (of_id, of_address) {
            (Some(of_id), Some(of_address)) if of_id.id != of_address.id => Err(store::external_id_taken()),
            (Some(_), None) if wanted.address.is_some() => Err(ApiError::conflict("address_differs")
                .at("email", "the contact with this external_id has another address, which does not change")),
            (None, Some(of_address)) if wanted.external_id.is_some() && of_address.external_id.is_some() => {
                let detail = "the contact with this address has another one; PATCH /v1/contacts/{id} changes it";
                Err(ApiError::conflict("external_id_differs").at("external_id", detail))
            }
            (None, None) if wanted.address.is_none() => {
                let detail = "no contact has this external_id, and a new one needs an address";
                Err(ApiError::invalid("email", "required", detail))
            }
            (of_id, of_address) => Ok(of_id.or(of_address)),
        }
    }
}

/// What to do for one contact.
#[derive(Debug)]
pub(super) enum UpsertAction {
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
    pub(super) fn contact(&self) -> Uuid {
        match self {
            Self::Create { id, .. } | Self::Update { id, .. } => *id,
        }
    }
}

/// A change of a contact's consent, for the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StatusChange {
    pub(super) from: MarketingStatus,
    pub(super) to: MarketingStatus,
}

/// Decides what to do for one contact. `default`: what happens to one that exists, unless the caller says it.
fn decide(wanted: &WantedContact, known: &KnownContacts, default: OnExisting) -> Result<UpsertAction, ApiError> {
    match known.find(wanted)? {
        Some(contact) => update_of(wanted, contact, wanted.on_existing.unwrap_or(default)),
        None => {
            let has_left = wanted.address.as_ref().is_some_and(|address| known.left_by_own_hand.contains(address));
            creation_of(wanted, has_left)
        }
    }
}

/// `has_left`: the recipient unsubscribed, and that outlived the contact. The new one is unsubscribed, whatever else is said.
fn creation_of(wanted: &WantedContact, has_left: bool) -> Result<UpsertAction, ApiError> {
    if has_left && wanted.marketing_status == Some(MarketingStatus::Subscribed) {
        return Err(unsubscribed_by_recipient());
    }
    let id = new_id();
    let mut row = wanted.columns.clone();
    row.extend(wanted.consent.iter().flat_map(Consent::columns));
    let status = match wanted.marketing_status {
        _ if has_left => MarketingStatus::Unsubscribed,
        _ if wanted.require_verification => MarketingStatus::Pending,
        status => status.unwrap_or(MarketingStatus::Subscribed),
    };
    row.insert("id".to_owned(), json!(id));
    row.insert("address".to_owned(), json!(wanted.address));
    row.insert("external_id".to_owned(), json!(wanted.external_id));
    row.insert("marketing_status".to_owned(), json!(status.as_str()));
    row.insert("fields".to_owned(), json!(wanted.fields));
    Ok(UpsertAction::Create { id, row: Value::Object(row) })
}

fn update_of(wanted: &WantedContact, known: &KnownContact, existing: OnExisting) -> Result<UpsertAction, ApiError> {
    let updates = existing == OnExisting::Update;
    let mut to = new_status(wanted.marketing_status, known, updates)?;
    if wanted.require_verification && to == Some(MarketingStatus::Subscribed) {
        to = None;
    }
    let agrees = to == Some(MarketingStatus::Subscribed);
    let confirms = wanted.require_verification && known.marketing_status == MarketingStatus::Pending;
    // Consent that is older than what is known says nothing new; a kept contact takes it only together with its agreement, or with
    // the sign-up that it is to confirm.
    let is_newer =
        |consent: &&Consent| consent.at.is_none_or(|at| known.consent_at.is_none_or(|before| at.0 >= before));
    let consent = wanted.consent.as_ref().filter(is_newer).filter(|_| updates || agrees || confirms);
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
    // A statement counts also where it changes nothing: a contact that was known from mail only is the product's from now on.
    if wanted.marketing_status.is_some() || wanted.require_verification {
        let status = to.unwrap_or(known.marketing_status);
        columns.insert("marketing_status".to_owned(), json!(status.as_str()));
    }
    let status_change = to.map(|to| StatusChange { from: known.marketing_status, to });
    Ok(UpsertAction::Update { id: known.id, columns, fields, status_change, joins: updates })
}

/// The consent that a contact gets, if it changes. Who unsubscribed is not subscribed here: an update says so, a kept contact stays as
/// it is. An opt-out always counts, of a kept contact, too.
fn new_status(
    wanted: Option<MarketingStatus>,
    known: &KnownContact,
    updates: bool,
) -> Result<Option<MarketingStatus>, ApiError> {
    use MarketingStatus::{Pending, Subscribed, Unsubscribed};
    let Some(wanted) = wanted.filter(|wanted| *wanted != known.marketing_status) else { return Ok(None) };
    let has_left = known.marketing_status == Unsubscribed || known.left_by_own_hand;
    match wanted {
        Subscribed if has_left && !updates => Ok(None),
        Subscribed if known.left_by_own_hand => Err(unsubscribed_by_recipient()),
        Subscribed if has_left => Err(ApiError::conflict("contact_unsubscribed")
            .at("marketing_status", "the contact is unsubscribed; PATCH /v1/contacts/{id} takes that back")),
        Subscribed => Ok(Some(Subscribed)),
        Unsubscribed => Ok(Some(Unsubscribed)),
        // Being unsubscribed is more than pending.
        Pending => Ok((updates && !has_left).then_some(Pending)),
    }
}

fn unsubscribed_by_recipient() -> ApiError {
    ApiError::conflict("unsubscribed_by_recipient")
        .at("marketing_status", "the recipient unsubscribed; only the recipient can opt in again")
}

/// Decides for all. Of several that mean one contact the first that is accepted counts.
pub(super) fn decide_all(
    wanted: &[Result<WantedContact, ApiError>],
    known: &KnownContacts,
    default: OnExisting,
) -> Vec<Result<UpsertAction, ApiError>> {
    let mut contacts: HashSet<Uuid> = HashSet::new();
    let (mut addresses, mut external_ids): (HashSet<String>, HashSet<String>) = (HashSet::new(), HashSet::new());
    let mut decide_one = |wanted: &WantedContact| {
        let action = decide(wanted, known, default)?;
        let contact_is_new = !contacts.contains(&action.contact());
        let address_is_new = wanted.address.as_ref().is_none_or(|address| !addresses.contains(address));
        let id_is_new = wanted.external_id.as_ref().is_none_or(|id| !external_ids.contains(id));
        if contact_is_new && address_is_new && id_is_new {
            contacts.insert(action.contact());
            addresses.extend(wanted.address.clone());
            external_ids.extend(wanted.external_id.clone());
            return Ok(action);
        }
        // With a new address, its id may be another name of a contact that is in the batch.
        let is_by_id = !id_is_new || address_is_new && wanted.external_id.is_some();
        let path = if is_by_id { "external_id" } else { "email" };
        Err(ApiError::invalid(path, "duplicate", "stands in the batch before"))
    };
    wanted.iter().map(|wanted| decide_one(wanted.as_ref().map_err(ApiError::clone)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::GivenTime;
    use rstest::rstest;

    fn known(address: &str, external_id: Option<&str>, status: &str, left_by_own_hand: bool) -> KnownContact {
        KnownContact {
            id: new_id(),
            address: address.to_owned(),
            external_id: external_id.map(str::to_owned),
            merged_addresses: Vec::new(),
            merged_external_ids: Vec::new(),
            marketing_status: MarketingStatus::parse(status).unwrap(),
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
        let known = KnownContacts::new(contacts, Vec::new());
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
    #[case("subscribed", false, "unsubscribed", Ok(Some("unsubscribed")), Some("unsubscribed"))]
    #[case("pending", false, "unsubscribed", Ok(Some("unsubscribed")), Some("unsubscribed"))]
    #[case("subscribed", true, "subscribed", Ok(None), None)]
    fn a_contact_that_left_is_not_subscribed_again(
        #[case] before: &str,
        #[case] left: bool,
        #[case] status: &str,
        #[case] updated: Result<Option<&str>, &str>,
        #[case] kept: Option<&str>,
    ) {
        let contact = known("ann@x.co", None, before, left);
        let status = MarketingStatus::parse(status).unwrap();
        let found = new_status(Some(status), &contact, true).map(|to| to.map(MarketingStatus::as_str));
        assert_eq!(found.as_ref().map_err(|error| error.code.as_ref()), updated.as_ref().map_err(|code| *code));
        let found = new_status(Some(status), &contact, false).unwrap();
        assert_eq!(found.map(MarketingStatus::as_str), kept);
    }

    #[rstest]
    #[case(None, false, Ok("unsubscribed"))]
    #[case(None, true, Ok("unsubscribed"))]
    #[case(Some("pending"), false, Ok("unsubscribed"))]
    #[case(Some("subscribed"), false, Err("unsubscribed_by_recipient"))]
    fn an_opt_out_that_outlived_its_contact_holds_for_a_new_one(
        #[case] status: Option<&str>,
        #[case] require_verification: bool,
        #[case] expected: Result<&str, &str>,
    ) {
        let known = KnownContacts::new(Vec::new(), vec!["ann@x.co".to_owned()]);
        let marketing_status = status.map(|status| MarketingStatus::parse(status).unwrap());
        let wanted = WantedContact { marketing_status, require_verification, ..wanted(Some("ann@x.co"), None) };
        let found = decide(&wanted, &known, OnExisting::Keep).map(|action| match action {
            UpsertAction::Create { row, .. } => row["marketing_status"].as_str().unwrap().to_owned(),
            UpsertAction::Update { .. } => panic!("there is no contact"),
        });
        assert_eq!(found.as_deref().map_err(|error| error.code.as_ref()), expected);
    }

    #[rstest]
    #[case("2025-06-01T00:00:00Z", false)]
    #[case("2026-06-01T00:00:00Z", true)]
    fn older_consent_does_not_replace_newer(#[case] at: &str, #[case] taken: bool) {
        let consent = Consent { basis: Some("opt_in".into()), at: GivenTime::parse(at), ..Consent::default() };
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
        let known = KnownContacts::new(vec![known("ann@x.co", Some("1"), "subscribed", false)], Vec::new());
        let rows = [
            wanted(Some("ann@x.co"), None),
            wanted(None, Some("1")),
            wanted(Some("new@x.co"), Some("2")),
            wanted(Some("other@x.co"), Some("2")),
            wanted(Some("new@x.co"), None),
            // Its address was named by a refused one.
            wanted(Some("other@x.co"), None),
        ];
        let decided = decide_all(&rows.map(Ok), &known, OnExisting::Update);
        let good: Vec<bool> = decided.iter().map(Result::is_ok).collect();
        assert_eq!(good, [true, false, true, false, false, true]);
        let paths: Vec<&str> =
            decided.iter().filter_map(|one| Some(one.as_ref().err()?.fields[0].path.as_str())).collect();
        assert_eq!(paths, ["external_id", "external_id", "email"]);
    }
}
