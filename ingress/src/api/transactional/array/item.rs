//! One request of an array and its state: open, accepted, repeated or refused.

use std::collections::{BTreeSet, HashMap};

use schemas::rejected::Refusal;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    super::{METHOD, PATH, SendTransactional, ValidRequest, validate},
    ARRAY_MAX, ArraySummary, RefusedItem,
};
use crate::{
    api::{
        contacts::NamedContact,
        messages::attachment::{self, Inspection, Upload},
    },
    pipeline::{IdempotencyKey, TenantClaim, error::ApiError, json},
    state::Ingress,
};

/// The field of an item that holds its idempotency key.
const KEY: &str = "idempotency_key";

/// The id of an accepted item's send, or why it is refused.
pub(super) type ItemOutcome = Result<Uuid, Refusal>;

#[derive(Debug)]
pub(super) struct ArrayItem {
    /// Its index, from 0.
    pub index: usize,
    pub key: Option<IdempotencyKey>,
    /// True if it claimed its key: its answer is stored there. What another request stored under the key stays.
    pub holds_key: bool,
    /// The tenant it names.
    pub claim: Option<TenantClaim>,
    /// The tenant, once it is found.
    pub tenant: Option<Uuid>,
    pub state: ItemState,
    /// Its files were looked into: it counts against the hourly limit of its tenant once it is decided.
    inspection: Option<Inspection>,
}

#[derive(Debug)]
pub(super) enum ItemState {
    /// Read and validated on its own: a valid request, or the error that refuses it once its key is claimed.
    Open(Box<Result<ValidRequest, ApiError>>),
    /// Accepted, with the id of its send.
    Accepted(Uuid),
    /// Accepted before, under the same key. `None`: by an earlier item of this array.
    Repeated(Option<Uuid>),
    Refused(Refusal),
    /// Left until the array comes again: its tenant's requests cannot be handled now.
    Left,
}

impl ArrayItem {
    fn read(index: usize, body: Value) -> Self {
        let state = ItemState::Repeated(None);
        let mut item = Self { index, key: None, holds_key: false, claim: None, tenant: None, state, inspection: None };
        match item.take_key_and_tenant(body) {
            Ok(fields) => {
                let read = json::decode::<SendTransactional>(fields).and_then(validate);
                item.state = ItemState::Open(Box::new(read));
            }
            Err(error) => item.refuse(&error),
        }
        item
    }

    /// Takes key and tenant out of the body. The rest is the request.
    fn take_key_and_tenant(&mut self, body: Value) -> Result<Map<String, Value>, ApiError> {
        let Value::Object(mut fields) = body else {
            return Err(ApiError::invalid_json("each item of the array must be an object"));
        };
        let key = match fields.remove(KEY) {
            None | Some(Value::Null) => None,
            Some(Value::String(key)) if IdempotencyKey::is_valid_text(&key) => Some(key),
            Some(_) => return Err(ApiError::invalid(KEY, "invalid", "must be 1 to 255 visible ASCII characters")),
        };
        if let Some(key) = key {
            // The fingerprint of a single request with its files, so that a repeat of one is recognised.
            let written = serde_json::to_vec(&fields).map_err(|error| ApiError::unexpected(&error))?;
            self.key = Some(IdempotencyKey::of(&key, METHOD, PATH, &written));
        }
        self.claim = Some(TenantClaim::take_from(&mut fields)?);
        Ok(fields)
    }

    /// True if it is neither accepted nor refused.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, ItemState::Open(_))
    }

    pub(super) fn refuse(&mut self, error: &ApiError) {
        self.state = ItemState::Refused(error.refusal());
    }

    /// Refuses the item because its key belongs to another request.
    pub(super) fn refuse_key(&mut self) {
        self.refuse(
            &ApiError::unprocessable("idempotency_key_reused")
                .detail("the idempotency_key was used before with another request"),
        );
    }

    /// Refuses the item if it is not valid on its own.
    fn check_request(&mut self) {
        if let ItemState::Open(read) = &self.state
            && let Err(error) = &**read
        {
            self.state = ItemState::Refused(error.refusal());
        }
    }

    /// The request of an open item that is valid on its own.
    fn valid(&self) -> Option<&ValidRequest> {
        match &self.state {
            ItemState::Open(read) => (**read).as_ref().ok(),
            _ => None,
        }
    }

    /// The files that are to be looked into.
    fn uploads(&self) -> &[Upload] {
        self.valid().map(|valid| valid.uploads.as_slice()).unwrap_or_default()
    }

    /// Accepts or refuses an open item.
    pub(super) fn decide(&mut self, decision: impl FnOnce(ValidRequest) -> Result<Uuid, ApiError>) {
        match std::mem::replace(&mut self.state, ItemState::Repeated(None)) {
            ItemState::Open(read) => match (*read).and_then(decision) {
                Ok(send) => self.state = ItemState::Accepted(send),
                Err(error) => self.refuse(&error),
            },
            other => self.state = other,
        }
    }
}

#[derive(Debug)]
pub(super) struct ArrayItems(Vec<ArrayItem>);

impl ArrayItems {
    /// Reads and validates all items, before the transaction begins.
    pub(super) fn read(bodies: Vec<Value>) -> Self {
        debug_assert!(bodies.len() <= ARRAY_MAX);
        Self(bodies.into_iter().enumerate().map(|(index, body)| ArrayItem::read(index, body)).collect())
    }

    /// Reads and validates the items of one tenant, which do not name it themselves.
    pub(super) fn of_tenant(bodies: Vec<Value>, tenant: Uuid) -> Self {
        let read = |(index, mut body): (usize, Value)| {
            let fields = body.as_object_mut();
            let foreign = fields.and_then(|fields| {
                let named =
                    ["product_tenant_id", "engine_tenant_id"].into_iter().find(|name| fields.contains_key(*name));
                // Part of the fingerprint: one key may serve several tenants.
                fields.insert("product_tenant_id".to_owned(), tenant.to_string().into());
                named
            });
            let mut item = ArrayItem::read(index, body);
            item.tenant = Some(tenant);
            if let Some(name) = foreign {
                item.key = None;
                item.refuse(&ApiError::invalid(name, "unknown_field", "stands beside the items, once"));
            }
            item
        };
        Self(bodies.into_iter().enumerate().map(read).collect())
    }

    /// True if there are files to look into.
    pub(super) fn have_uploads(&self) -> bool {
        self.0.iter().any(|item| !item.uploads().is_empty())
    }

    /// Looks into the files of items whose tenant is known. A bad file refuses its item only.
    ///
    /// # Errors
    /// 413 for files that are too large together; 503 if a file cannot be read now, so that the array is repeated as a whole.
    pub(super) async fn inspect_files(&mut self, ingress: &Ingress, product: &str) -> Result<(), ApiError> {
        attachment::check_total(self.0.iter().flat_map(ArrayItem::uploads).map(Upload::decoded_bytes).sum())?;
        for item in &mut self.0 {
            let (Some(tenant), ItemState::Open(read)) = (item.tenant, &mut item.state) else { continue };
            let Ok(valid) = &mut **read else { continue };
            let inspected = valid.inspect_files(ingress, product, tenant).await;
            match inspected {
                Ok(inspection) => item.inspection = inspection,
                Err(error) if error.status.is_server_error() => {
                    return Err(error.detail(format!("the files of item {}, from 0, cannot be read now", item.index)));
                }
                Err(error) => **read = Err(error),
            }
        }
        Ok(())
    }

    /// Counts the files of these items, which are decided. Those of others do not use up the limit of their repeat.
    pub(super) fn keep_inspections(&mut self) {
        self.0.iter_mut().filter_map(|item| item.inspection.take()).for_each(Inspection::keep);
    }

    /// The outcome of each item, in order. An item that repeats an earlier one has its outcome.
    pub(super) fn outcomes(&self) -> Vec<ItemOutcome> {
        let mut by_key: HashMap<(&str, &[u8; 32]), ItemOutcome> = HashMap::new();
        let mut outcomes = Vec::with_capacity(self.0.len());
        for item in &self.0 {
            let key = item.key.as_ref().map(|key| (key.value.as_str(), &key.fingerprint));
            let outcome = match &item.state {
                ItemState::Accepted(send) | ItemState::Repeated(Some(send)) => Ok(*send),
                ItemState::Refused(refusal) => Err(refusal.clone()),
                _ => {
                    key.and_then(|key| by_key.get(&key).cloned()).unwrap_or_else(|| Err(ApiError::internal().refusal()))
                }
            };
            if let Some(key) = key {
                by_key.entry(key).or_insert_with(|| outcome.clone());
            }
            outcomes.push(outcome);
        }
        outcomes
    }

    /// The items that are neither accepted nor refused.
    pub(super) fn open_mut(&mut self) -> impl Iterator<Item = &mut ArrayItem> {
        self.0.iter_mut().filter(|item| item.is_open())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ArrayItem> {
        self.0.iter()
    }

    /// Refuses the items that are not valid on their own. Returns the tenants of the others, in the order in which they are locked.
    pub(super) fn check_requests(&mut self) -> Vec<Uuid> {
        self.0.iter_mut().for_each(ArrayItem::check_request);
        distinct(self.0.iter().filter(|item| item.is_open()).filter_map(|item| item.tenant))
    }

    /// The open items of one tenant.
    pub(super) fn of_mut(&mut self, tenant: Uuid) -> impl Iterator<Item = &mut ArrayItem> {
        self.open_mut().filter(move |item| item.tenant == Some(tenant))
    }

    fn valid(&self, tenant: Uuid) -> impl Iterator<Item = &ValidRequest> {
        self.0.iter().filter(move |item| item.tenant == Some(tenant)).filter_map(ArrayItem::valid)
    }

    pub(super) fn templates(&self, tenant: Uuid) -> Vec<Uuid> {
        distinct(self.valid(tenant).map(|valid| valid.template_id))
    }

    pub(super) fn contacts(&self, tenant: Uuid) -> Vec<&NamedContact> {
        self.valid(tenant).map(|valid| &valid.contact).collect()
    }

    pub(super) fn senders(&self, tenant: Uuid) -> Vec<Uuid> {
        distinct(self.valid(tenant).filter_map(|valid| valid.sender_id))
    }

    /// Only the items with these indexes.
    pub(super) fn keep(&mut self, indexes: &[usize]) {
        self.0.retain(|item| indexes.contains(&item.index));
    }

    /// Leaves all items of a tenant until the array comes again.
    pub(super) fn leave(&mut self, tenant: Uuid) {
        for item in self.0.iter_mut().filter(|item| item.tenant == Some(tenant)) {
            item.state = ItemState::Left;
        }
    }

    /// Takes out the items that are left. Returns their indexes.
    pub(super) fn take_left(&mut self) -> Vec<usize> {
        let left = self.0.extract_if(.., |item| matches!(item.state, ItemState::Left));
        left.map(|item| item.index).collect()
    }

    /// How many were accepted, and the refused ones.
    pub(super) fn summary(&self) -> ArraySummary {
        let mut summary = ArraySummary::default();
        for (item, outcome) in self.0.iter().zip(self.outcomes()) {
            match outcome {
                Ok(_) => summary.accepted += 1,
                Err(refusal) => summary.refused.push(RefusedItem {
                    index: item.index,
                    idempotency_key: item.key.as_ref().map(|key| key.value.clone()),
                    refusal,
                }),
            }
        }
        summary
    }
}

/// Each id once, in order.
fn distinct(ids: impl Iterator<Item = Uuid>) -> Vec<Uuid> {
    ids.collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::no_object(json!("ann@example.com"), "invalid_json")]
    #[case::no_tenant(json!({"email": "ann@example.com"}), "validation_failed")]
    #[case::bad_key(json!({"product_tenant_id": "t", "idempotency_key": "a b"}), "validation_failed")]
    #[case::bad_address(json!({"product_tenant_id": "t", "template_id": schemas::new_id(), "email": "ann"}), "validation_failed")]
    #[case::unknown_field(json!({"product_tenant_id": "t", "template_id": schemas::new_id(), "email": "a@b.co", "x": 1}), "validation_failed")]
    #[case::files(json!({"product_tenant_id": "t", "template_id": schemas::new_id(), "email": "a@b.co", "attachments": [{"filename": "a.exe", "content_base64": "QQ=="}]}), "validation_failed")]
    #[case::invite(json!({"product_tenant_id": "t", "template_id": schemas::new_id(), "email": "a@b.co", "calendar": {}}), "validation_failed")]
    fn a_bad_item_is_refused_with_its_index_and_costs_no_other(#[case] bad: Value, #[case] code: &str) {
        let good = json!({"product_tenant_id": "t", "template_id": schemas::new_id(), "email": "ann@example.com"});
        let mut items = ArrayItems::read(vec![good, bad]);
        items.check_requests();
        items.0[0].decide(|_| Ok(schemas::new_id()));
        let summary = items.summary();
        assert_eq!((summary.accepted, summary.refused.len(), summary.refused[0].index), (1, 1, 1));
        assert_eq!(summary.refused[0].refusal.code, code);
    }

    #[rstest]
    #[case::no_object(json!("ann@example.com"), "invalid_json")]
    #[case::another_tenant(json!({"product_tenant_id": "t", "template_id": schemas::new_id(), "email": "a@b.co"}), "validation_failed")]
    #[case::another_tenant_by_id(json!({"engine_tenant_id": "t", "template_id": schemas::new_id(), "email": "a@b.co"}), "validation_failed")]
    fn an_item_of_a_batch_names_no_tenant(#[case] bad: Value, #[case] code: &str) {
        let good = json!({"template_id": schemas::new_id(), "email": "ann@example.com", "idempotency_key": "k"});
        let tenant = schemas::new_id();
        let mut items = ArrayItems::of_tenant(vec![bad, good.clone()], tenant);
        assert_eq!(items.check_requests(), [tenant]);
        assert_eq!(items.outcomes()[0].as_ref().unwrap_err().code, code);
        let other = ArrayItems::of_tenant(vec![good], schemas::new_id());
        let fingerprint = |items: &ArrayItems, at: usize| items.0[at].key.as_ref().unwrap().fingerprint;
        assert_ne!(fingerprint(&items, 1), fingerprint(&other, 0), "one key may serve several tenants");
    }

    #[tokio::test]
    async fn files_of_an_item_that_is_left_do_not_count() {
        let item = json!({"template_id": schemas::new_id(), "email": "ann@example.com"});
        let tenant = schemas::new_id();
        let mut items = ArrayItems::of_tenant(vec![item.clone(), item], tenant);
        for item in &mut items.0 {
            item.inspection = Some(attachment::admit(tenant).await.unwrap());
        }
        items.0[1].state = ItemState::Left;
        assert_eq!(items.take_left(), [1]);
        items.keep_inspections();
        let mut more = Vec::new();
        while let Ok(inspection) = attachment::admit(tenant).await {
            more.push(inspection);
        }
        assert_eq!(more.len() + 1, attachment::INSPECTIONS_PER_HOUR as usize);
    }

    #[test]
    fn a_repeat_of_a_refused_item_is_refused() {
        let item = json!({"template_id": schemas::new_id(), "email": "ann@example.com", "idempotency_key": "k"});
        let mut items = ArrayItems::of_tenant(vec![item.clone(), item], schemas::new_id());
        items.check_requests();
        items.0[0].refuse(&ApiError::not_found("template"));
        items.0[1].state = ItemState::Repeated(None);
        let summary = items.summary();
        assert_eq!((summary.accepted, summary.refused.len()), (0, 2));
        assert_eq!(summary.refused[1].refusal.code, "template_not_found");
    }

    #[test]
    fn an_item_repeats_the_single_request_with_its_key() {
        let alone = json!({"product_tenant_id": "t", "email": "ann@example.com"});
        let mut keyed = alone.clone();
        keyed["idempotency_key"] = json!("k-1");
        let items = ArrayItems::read(vec![keyed]);
        let single = IdempotencyKey::of("k-1", "POST", "/v1/transactional", alone.to_string().as_bytes());
        assert_eq!(items.0[0].key.as_ref().unwrap().fingerprint, single.fingerprint);
    }
}
