//! Rows to work on, as the ingress would have written them.

use chrono::{DateTime, Utc};
use runtime::Publication;
use schemas::{
    Address, Classification, Environment, Lane, RequestAnnounced, RequestKind, Resolved, SendId,
    messages::{ContactDetails, TransactionalPayload},
    month_of, new_batch_id, new_id, subjects,
};
use sqlx::types::Json;
use uuid::Uuid;

use crate::Rig;

/// The product all requests of the tests come from.
const PRODUCT: &str = "shop";

/// A tenant that may send.
#[derive(Debug, Clone, Copy)]
pub struct Tenant {
    pub id: Uuid,
    pub domain: Uuid,
    pub sender: Uuid,
    pub content: Uuid,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    pub id: Uuid,
    pub address: String,
}

impl Rig {
    /// An active tenant with a verified domain, a sender and a content.
    pub async fn tenant(&self) -> Tenant {
        let tenant = Tenant { id: new_id(), domain: new_id(), sender: new_id(), content: new_id() };
        let sql = "insert into tenants (id, environment, owner_email) values ($1, 'production', 'owner@example.com')";
        crate::run!(&self.pool, sql, [tenant.id]);
        let sql =
            "insert into domains (tenant_id, id, domain, status, selector, dkim_private, dkim_public, ownership_token)
             values ($1, $2, 'd' || replace($2::text, '-', '') || '.example.com', 'verified', 's', '\\x00', 'x', 't')";
        crate::run!(&self.pool, sql, [tenant.id, tenant.domain]);
        let sql = "insert into senders (tenant_id, id, domain_id, email, name) values ($1, $2, $3, 'news@example.com', 'News')";
        crate::run!(&self.pool, sql, [tenant.id, tenant.sender, tenant.domain]);
        let sql = "insert into contents (tenant_id, id, kind, subject, body_html) values ($1, $2, 'marketing', 'Hello', '<p>Hi</p>')";
        crate::run!(&self.pool, sql, [tenant.id, tenant.content]);
        tenant
    }

    /// Contacts that are subscribed, in the order of their ids.
    pub async fn people(&self, tenant: &Tenant, count: usize) -> Vec<Person> {
        let mut people: Vec<Person> = (0..count)
            .map(|_| new_id())
            .map(|id| Person { id, address: format!("p{}@example.org", id.simple()) })
            .collect();
        people.sort_by_key(|person| person.id);
        let ids: Vec<Uuid> = people.iter().map(|person| person.id).collect();
        let addresses: Vec<&str> = people.iter().map(|person| person.address.as_str()).collect();
        let sql = "insert into contacts (tenant_id, id, address) select $1, * from unnest($2::uuid[], $3::text[])";
        crate::run!(&self.pool, sql, [tenant.id, &ids, &addresses]);
        people
    }

    /// Holds something against an address. Scope and expiry as the reason usually has them.
    pub async fn suppress(&self, tenant: &Tenant, person: &Person, reason: &str, scope: &str) {
        let sql = "insert into suppressions (tenant_id, id, address, reason, scope, source) values ($1, $2, $3, $4, $5, 'api')";
        crate::run!(&self.pool, sql, [tenant.id, new_id(), &person.address, reason, scope]);
    }

    /// A list or tag with these members.
    pub async fn audience(&self, tenant: &Tenant, kind: &str, members: &[Person]) -> Uuid {
        let id = new_id();
        let sql = "insert into audiences (tenant_id, id, kind, name) values ($1, $2, $3, $2::text)";
        crate::run!(&self.pool, sql, [tenant.id, id, kind]);
        let members: Vec<Uuid> = members.iter().map(|person| person.id).collect();
        let sql = "insert into audience_members (tenant_id, audience_id, contact_id) select $1, $2, unnest($3::uuid[])";
        crate::run!(&self.pool, sql, [tenant.id, id, &members]);
        id
    }

    /// A marketing campaign to a list, launched: its request is the next thing.
    pub async fn campaign(&self, tenant: &Tenant, list: Uuid) -> Uuid {
        let id = new_id();
        let sql = "insert into campaigns (tenant_id, id, product, environment, name, sender_profile_id, content_id, audience_mode,
                                    list_id, message_purpose, classification, status)
             values ($1, $2, $3, 'production', 'News', $4, $5, 'list', $6, 'newsletter', 'marketing', 'sending')";
        crate::run!(&self.pool, sql, [tenant.id, id, PRODUCT, tenant.sender, tenant.content, list]);
        id
    }

    /// Writes a request that a sweep announces at `announce_after`, and answers its announcement.
    pub async fn request(
        &self,
        tenant: &Tenant,
        kind: RequestKind,
        id: Uuid,
        payload: serde_json::Value,
        announce_after: DateTime<Utc>,
    ) -> RequestAnnounced {
        let sql = "insert into requests (tenant_id, id, product, environment, kind, payload, announce_after)
             values ($1, $2, $3, 'production', $4, $5, $6)";
        crate::run!(&self.pool, sql, [tenant.id, id, PRODUCT, kind.as_str(), Json(payload), announce_after]);
        RequestAnnounced::of(tenant.id, id, kind)
    }

    /// A launch request that no sweep announces while the test runs.
    pub async fn launch_request(&self, tenant: &Tenant, campaign: Uuid) -> RequestAnnounced {
        let payload = serde_json::json!({ "campaign_id": campaign });
        self.request(tenant, RequestKind::CampaignLaunch, new_id(), payload, far_off()).await
    }

    /// A launch request with the digest of an audience, which is pinned in ranges of so many contacts.
    pub async fn launch_request_of(
        &self,
        tenant: &Tenant,
        campaign: Uuid,
        people: &[Person],
        range: usize,
    ) -> RequestAnnounced {
        for (part, range) in (0_i32..).zip(people.chunks(range)) {
            let contacts: Vec<Uuid> = range.iter().map(|person| person.id).collect();
            let sql = "insert into launch_audiences (tenant_id, campaign_id, part, contacts) values ($1, $2, $3, $4)";
            crate::run!(&self.pool, sql, [tenant.id, campaign, part, contacts]);
        }
        let payload = serde_json::json!({ "campaign_id": campaign, "digest": "of these" });
        self.request(tenant, RequestKind::CampaignLaunch, new_id(), payload, far_off()).await
    }

    /// A transactional request, likewise; `edit` may change what it asks for.
    pub async fn transactional_request(
        &self,
        tenant: &Tenant,
        address: &str,
        edit: impl FnOnce(&mut TransactionalPayload),
    ) -> RequestAnnounced {
        let mut payload = TransactionalPayload {
            send_id: new_batch_id(),
            address: Address::parse(address).unwrap(),
            contact: ContactDetails::default(),
            template_id: new_id(),
            content_id: tenant.content,
            sender_id: tenant.sender,
            data: serde_json::Map::new(),
        };
        edit(&mut payload);
        let json = serde_json::to_value(&payload).unwrap();
        self.request(tenant, RequestKind::Transactional, payload.send_id, json, far_off()).await
    }

    /// A one-off message to these people and its request, likewise.
    pub async fn message_request(&self, tenant: &Tenant, people: &[Person]) -> RequestAnnounced {
        let id = new_batch_id();
        let sends: Vec<Uuid> = (0..people.len()).map(|at| SendId::of(id, u16::try_from(at).unwrap()).0).collect();
        let contacts: Vec<Uuid> = people.iter().map(|person| person.id).collect();
        let sql = "insert into messages (tenant_id, id, sender_id, content_id) values ($1, $2, $3, $4)";
        crate::run!(&self.pool, sql, [tenant.id, id, tenant.sender, tenant.content]);
        let sql = "insert into message_recipients (tenant_id, message_id, send_id, contact_id)
             select $1, $2, * from unnest($3::uuid[], $4::uuid[])";
        crate::run!(&self.pool, sql, [tenant.id, id, &sends, &contacts]);
        let payload = serde_json::json!({ "message_id": id });
        self.request(tenant, RequestKind::Message, id, payload, far_off()).await
    }

    /// Announces requests; `ring` sets repeats apart, which JetStream would otherwise drop.
    pub async fn ring(&self, requests: &[RequestAnnounced], ring: &str) {
        let publications = requests.iter().map(|request| {
            let subject = subjects::accepted(PRODUCT, Environment::Production, request.kind);
            Publication::json(subject, format!("{}-{ring}", request.request_id), request).unwrap()
        });
        self.publish(publications.collect()).await;
    }

    /// A batch of queued sends of a campaign, announced for the first time, and its announcement.
    pub async fn batch(
        &self,
        tenant: &Tenant,
        campaign: Uuid,
        classification: Classification,
        people: &[Person],
    ) -> Resolved {
        let id = new_batch_id();
        let sends: Vec<Uuid> = (0..people.len()).map(|at| SendId::of(id, u16::try_from(at).unwrap()).0).collect();
        let contacts: Vec<Uuid> = people.iter().map(|person| person.id).collect();
        let size = i32::try_from(people.len()).unwrap();
        let mut tx = self.pool.begin().await.unwrap();
        let sql = "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, state,
                                  announce_after, announcement, size, queued)
             values ($1, $2, $3, 'campaign', 'bulk', $4, $5, $6, $7, 'announced', now() + interval '60 seconds', 1, $8, $8)";
        let (month, class) = (month_of(id), classification.as_str());
        crate::run!(&mut *tx, sql, [tenant.id, id, month, class, campaign, tenant.content, tenant.sender, size]);
        let sql = "insert into sends (tenant_id, id, month, campaign_id, contact_id)
             select $1, s.id, $2, $3, s.contact_id from unnest($4::uuid[], $5::uuid[]) as s (id, contact_id)";
        crate::run!(&mut *tx, sql, [tenant.id, month, campaign, &sends, &contacts]);
        tx.commit().await.unwrap();
        Resolved { tenant_id: tenant.id, batch_id: id, lane: Lane::Bulk, announcement: 1, notify: None }
    }
}

fn far_off() -> DateTime<Utc> {
    Utc::now() + chrono::TimeDelta::days(1)
}
