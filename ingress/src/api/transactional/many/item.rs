//! One request of an array, and how far it has come.

use http::StatusCode;
use schemas::rejected::Refusal;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    super::{METHOD, PATH, SendTransactional, Wanted, validate},
    MANY_MAX, Refused, Summary,
};
use crate::pipeline::{IdempotencyKey, TenantClaim, body::BODY_MAX_BYTES, error::ApiError, json};

/// The field of an item that names what a repetition of it is recognised by.
const KEY: &str = "idempotency_key";

/// A request of an array.
#[derive(Debug)]
pub(super) struct Item {
    /// Its place, from 0.
    pub index: usize,
    /// Its own key, if it has one.
    pub key: Option<IdempotencyKey>,
    /// Who it is for, as it says.
    pub claim: Option<TenantClaim>,
    /// Who that is.
    pub tenant: Option<Uuid>,
    pub standing: Standing,
}

/// How far it has come.
#[derive(Debug)]
pub(super) enum Standing {
    /// Read, with what its own words came to.
    Read(Box<Result<Wanted, ApiError>>),
    /// Good by its own words.
    Wanted(Box<Wanted>),
    /// Its send.
    Accepted(Uuid),
    /// Accepted before, under the same key.
    Repeated,
    /// Not accepted. `kept`: its key has an answer, this one or another request's, and keeps it.
    Refused { refusal: Refusal, kept: bool },
}

impl Item {
    fn read(index: usize, body: Value) -> Self {
        let mut item = Self { index, key: None, claim: None, tenant: None, standing: Standing::Repeated };
        match item.take(body) {
            Ok(fields) => {
                let read = json::decode::<SendTransactional>(fields).and_then(validate);
                item.standing = Standing::Read(Box::new(read));
            }
            Err(error) => item.refuse(&error),
        }
        item
    }

    /// Takes key and tenant out of the body, so that what is left is the request's own.
    fn take(&mut self, body: Value) -> Result<Map<String, Value>, ApiError> {
        let Value::Object(mut fields) = body else {
            return Err(ApiError::invalid_json("each item of the array must be an object"));
        };
        let key = match fields.remove(KEY) {
            None | Some(Value::Null) => None,
            Some(Value::String(key)) if IdempotencyKey::is_sane(&key) => Some(key),
            Some(_) => return Err(ApiError::invalid(KEY, "invalid", "must be 1 to 255 visible ASCII characters")),
        };
        // As if it came alone: so that one that was published before, under this id, is recognised.
        let written = serde_json::to_vec(&fields).map_err(|error| ApiError::unexpected(&error))?;
        if written.len() > BODY_MAX_BYTES {
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large")
                .detail(format!("a request may have at most {BODY_MAX_BYTES} bytes")));
        }
        self.key = key.map(|key| IdempotencyKey::of(&key, METHOD, PATH, &written));
        self.claim = Some(TenantClaim::take_from(&mut fields)?);
        Ok(fields)
    }

    /// Whether it is still to be decided.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.standing, Standing::Read(_) | Standing::Wanted(_))
    }

    /// Refuses it.
    pub(super) fn refuse(&mut self, error: &ApiError) {
        self.standing = Standing::Refused { refusal: error.refusal(), kept: false };
    }

    /// Refuses it because its key is another request's, which keeps its answer.
    pub(super) fn refuse_key(&mut self) {
        let reused = ApiError::unprocessable("idempotency_key_reused")
            .detail("the idempotency_key was used before with another request");
        self.standing = Standing::Refused { refusal: reused.refusal(), kept: true };
    }

    /// Refuses it for its own words, if they are bad and it is still to be decided.
    fn judge_words(&mut self) {
        match std::mem::replace(&mut self.standing, Standing::Repeated) {
            Standing::Read(read) => match *read {
                Ok(wanted) => self.standing = Standing::Wanted(Box::new(wanted)),
                Err(error) => self.refuse(&error),
            },
            other => self.standing = other,
        }
    }

    fn wanted(&self) -> Option<&Wanted> {
        match &self.standing {
            Standing::Wanted(wanted) => Some(wanted),
            _ => None,
        }
    }

    /// Decides one that is good by its own words.
    pub(super) fn decide(&mut self, verdict: impl FnOnce(Wanted) -> Result<Uuid, ApiError>) {
        let placeholder = Standing::Repeated;
        match std::mem::replace(&mut self.standing, placeholder) {
            Standing::Wanted(wanted) => match verdict(*wanted) {
                Ok(send) => self.standing = Standing::Accepted(send),
                Err(error) => self.refuse(&error),
            },
            other => self.standing = other,
        }
    }
}

/// The requests of an array.
#[derive(Debug)]
pub(super) struct Items(Vec<Item>);

impl Items {
    /// Reads them all, whether they come to be decided or not: so that no transaction waits for it.
    pub(super) fn read(bodies: Vec<Value>) -> Self {
        debug_assert!(bodies.len() <= MANY_MAX);
        Self(bodies.into_iter().enumerate().map(|(index, body)| Item::read(index, body)).collect())
    }

    /// Those still to be decided.
    pub(super) fn open_mut(&mut self) -> impl Iterator<Item = &mut Item> {
        self.0.iter_mut().filter(|item| item.is_open())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Item> {
        self.0.iter()
    }

    /// Judges each by its own words, and answers the tenants of those that are good: in order, for the locks they take.
    pub(super) fn tenants(&mut self) -> Vec<Uuid> {
        self.0.iter_mut().for_each(Item::judge_words);
        let mut tenants: Vec<Uuid> =
            self.0.iter().filter(|item| item.is_open()).filter_map(|item| item.tenant).collect();
        tenants.sort_unstable();
        tenants.dedup();
        tenants
    }

    /// One tenant's, of those still to be decided.
    pub(super) fn of_mut(&mut self, tenant: Uuid) -> impl Iterator<Item = &mut Item> {
        self.open_mut().filter(move |item| item.tenant == Some(tenant))
    }

    fn wanted(&self, tenant: Uuid) -> impl Iterator<Item = &Wanted> {
        self.0.iter().filter(move |item| item.tenant == Some(tenant)).filter_map(Item::wanted)
    }

    /// The templates a tenant's requests name.
    pub(super) fn templates(&self, tenant: Uuid) -> Vec<Uuid> {
        distinct(self.wanted(tenant).map(|wanted| wanted.template_id))
    }

    /// The senders a tenant's requests name.
    pub(super) fn senders(&self, tenant: Uuid) -> Vec<Uuid> {
        distinct(self.wanted(tenant).filter_map(|wanted| wanted.sender_id))
    }

    /// What became of all.
    pub(super) fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for item in &self.0 {
            match &item.standing {
                Standing::Refused { refusal, .. } => summary.refused.push(Refused {
                    index: item.index,
                    idempotency_key: item.key.as_ref().map(|key| key.value.clone()),
                    refusal: refusal.clone(),
                }),
                Standing::Accepted(_) | Standing::Repeated => summary.accepted += 1,
                Standing::Read(_) | Standing::Wanted(_) => {}
            }
        }
        summary
    }
}

fn distinct(ids: impl Iterator<Item = Uuid>) -> Vec<Uuid> {
    let mut ids: Vec<Uuid> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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
    fn a_bad_item_is_refused_with_its_place_and_costs_no_other(#[case] bad: Value, #[case] code: &str) {
        let good = json!({"product_tenant_id": "t", "template_id": schemas::new_id(), "email": "ann@example.com"});
        let mut items = Items::read(vec![good, bad]);
        items.tenants();
        assert!(items.0[0].wanted().is_some());
        let summary = items.summary();
        assert_eq!((summary.refused.len(), summary.refused[0].index), (1, 1));
        assert_eq!(summary.refused[0].refusal.code, code);
    }

    #[test]
    fn an_item_is_recognised_as_the_request_that_came_alone_under_its_key() {
        let alone = json!({"product_tenant_id": "t", "email": "ann@example.com"});
        let mut keyed = alone.clone();
        keyed["idempotency_key"] = json!("k-1");
        let items = Items::read(vec![keyed]);
        let single = IdempotencyKey::of("k-1", "POST", "/v1/transactional", alone.to_string().as_bytes());
        assert_eq!(items.0[0].key.as_ref().unwrap().fingerprint, single.fingerprint);
    }
}
