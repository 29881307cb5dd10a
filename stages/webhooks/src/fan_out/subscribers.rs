//! The subscribers of a tenant's events: linked products, their subscriptions and feeds.

use std::collections::{BTreeSet, HashMap};

use schemas::{Environment, EventType, SubscriptionStatus};
use sqlx::PgConnection;
use uuid::Uuid;

use super::pending_events::PendingEvent;

/// A product that a tenant is linked to.
#[derive(Debug, Clone)]
pub(super) struct ProductLink {
    pub product: String,
    pub environment: Environment,
    /// The product's id of the tenant.
    pub product_tenant_id: String,
    /// The product's events go to the bus.
    pub has_feed: bool,
    pub subscriptions: Vec<Subscription>,
}

/// A subscription that receives events now, or after it is resumed.
#[derive(Debug, Clone)]
pub(super) struct Subscription {
    pub id: Uuid,
    pub is_active: bool,
    /// The event types it names, without types that this version does not know.
    pub events: Vec<EventType>,
}

#[derive(Debug, Default)]
pub(super) struct Subscribers(HashMap<Uuid, Vec<ProductLink>>);

impl ProductLink {
    /// True if the event goes to the bus.
    pub fn is_published(&self, pending: &PendingEvent) -> bool {
        self.has_feed && pending.event_type != EventType::WebhookTest
    }

    pub fn matching_subscriptions<'a>(&'a self, pending: &'a PendingEvent) -> impl Iterator<Item = &'a Subscription> {
        self.subscriptions.iter().filter(|subscription| match pending.subscription {
            Some(only) => subscription.id == only,
            None => subscription.events.contains(&pending.event_type),
        })
    }
}

impl Subscribers {
    /// Loads the subscribers of these events' tenants.
    pub async fn load(db: &mut PgConnection, pending: &[PendingEvent]) -> sqlx::Result<Self> {
        let tenants: BTreeSet<Uuid> = pending.iter().map(|pending| pending.tenant_id).collect();
        let tenants: Vec<Uuid> = tenants.into_iter().collect();
        let mut subscribers = Self::default();
        for row in sqlx::query_file!("queries/load_links.sql", &tenants).fetch_all(db).await? {
            let subscription = row.subscription_id.map(|id| Subscription {
                id,
                is_active: row.status == Some(SubscriptionStatus::Active),
                events: row.events.iter().flatten().filter_map(|word| EventType::parse(word)).collect(),
            });
            let links = subscribers.0.entry(row.tenant_id).or_default();
            match links.iter_mut().find(|link| link.product == row.product) {
                Some(link) => link.subscriptions.extend(subscription),
                None => links.push(ProductLink {
                    product: row.product,
                    environment: row.environment,
                    product_tenant_id: row.product_tenant_id,
                    has_feed: row.feed,
                    subscriptions: Vec::from_iter(subscription),
                }),
            }
        }
        Ok(subscribers)
    }

    /// Leaves this subscription only, for a replay: nothing of that goes to the bus.
    pub fn only_subscription(mut self, subscription: Uuid) -> Self {
        for link in self.0.values_mut().flatten() {
            link.has_feed = false;
            link.subscriptions.retain(|known| known.id == subscription);
        }
        self
    }

    /// The links of the products that receive this event: all of the tenant's, or the one it is for.
    pub fn links_for<'a>(&'a self, pending: &'a PendingEvent) -> impl Iterator<Item = &'a ProductLink> {
        let links = self.0.get(&pending.tenant_id).map(Vec::as_slice).unwrap_or_default();
        links.iter().filter(|link| pending.product.as_ref().is_none_or(|only| *only == link.product))
    }
}

#[cfg(test)]
mod tests {
    use runtime::plans::PreparedPool;
    use serde_json::Value;
    use sqlx::AssertSqlSafe;
    use stage_rig::{Rig, rows_in_vain};

    #[tokio::test]
    async fn disabled_subscriptions_are_not_read() {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await.id;
        sqlx::query(
            "with link as (
                 insert into tenant_links (product, environment, product_tenant_id, tenant_id, owner_email)
                 values ('crm', 'production', 't-1', $1, 'owner@example.com')
             )
             insert into webhook_subscriptions (tenant_id, id, product, environment, url, events, secret, status, disabled_at)
             select $1, gen_random_uuid(), 'crm', 'production', 'https://x.example/', '{email.sent}', '', 'disabled', now()
             from generate_series(1, 5000)",
        )
        .bind(tenant)
        .execute(&rig.pool)
        .await
        .unwrap();
        let sql = concat!("explain (analyze, format json)\n", include_str!("../../queries/load_links.sql"));
        let plan: Value = sqlx::query_scalar(AssertSqlSafe(sql))
            .bind(vec![tenant])
            .fetch_one(&mut *PreparedPool::new(&rig.pool, 1).begin().await.unwrap())
            .await
            .unwrap();
        let in_vain = rows_in_vain(&plan);
        assert!(in_vain < 1_000.0, "{in_vain} rows were looked at in vain: {plan:#}");
    }
}
