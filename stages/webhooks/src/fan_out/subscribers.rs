//! Who is told: the products linked to a tenant, their subscriptions and feeds.

use std::collections::{BTreeSet, HashMap};

use schemas::{Environment, EventType, SubscriptionStatus};
use sqlx::PgConnection;
use uuid::Uuid;

use super::facts::Told;

/// A product that a tenant is linked to.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub product: String,
    pub environment: Environment,
    /// The tenant, as the product names it.
    pub product_tenant_id: String,
    /// Its events go to the bus.
    pub has_feed: bool,
    pub subscriptions: Vec<Subscription>,
}

/// A subscription that is told now, or once it is resumed.
#[derive(Debug, Clone)]
pub(super) struct Subscription {
    pub id: Uuid,
    pub is_active: bool,
    /// The types it names; those of a newer version are nobody's here.
    pub events: Vec<EventType>,
}

/// All of some tenants.
#[derive(Debug, Default)]
pub(super) struct Subscribers(HashMap<Uuid, Vec<Link>>);

impl Link {
    /// Whether the event goes to the bus.
    pub fn is_published(&self, told: &Told) -> bool {
        self.has_feed && told.event_type != EventType::WebhookTest
    }

    /// The subscriptions it goes to.
    pub fn told<'a>(&'a self, told: &'a Told) -> impl Iterator<Item = &'a Subscription> {
        self.subscriptions.iter().filter(|subscription| match told.subscription {
            Some(only) => subscription.id == only,
            None => subscription.events.contains(&told.event_type),
        })
    }
}

impl Subscribers {
    /// Reads who hears of these tenants.
    pub async fn load(db: &mut PgConnection, tenants: &BTreeSet<Uuid>) -> sqlx::Result<Self> {
        let tenants: Vec<Uuid> = tenants.iter().copied().collect();
        let mut subscriptions: HashMap<(Uuid, String), Vec<Subscription>> = HashMap::new();
        for row in sqlx::query_file!("queries/load_subscriptions.sql", &tenants).fetch_all(&mut *db).await? {
            let subscription = Subscription {
                id: row.id,
                is_active: row.status == SubscriptionStatus::Active,
                events: row.events.iter().filter_map(|word| EventType::parse(word)).collect(),
            };
            subscriptions.entry((row.tenant_id, row.product)).or_default().push(subscription);
        }
        let mut hearers = Self::default();
        for row in sqlx::query_file!("queries/load_hearers.sql", &tenants).fetch_all(db).await? {
            let subscriptions = subscriptions.remove(&(row.tenant_id, row.product.clone())).unwrap_or_default();
            hearers.0.entry(row.tenant_id).or_default().push(Link {
                product: row.product,
                environment: row.environment,
                product_tenant_id: row.product_tenant_id,
                has_feed: row.feed,
                subscriptions,
            });
        }
        Ok(hearers)
    }

    /// Confines them to one subscription, for a replay; `None` when its product is no longer linked.
    pub fn only(mut self, tenant: Uuid, subscription: Uuid) -> Option<Link> {
        let links = self.0.remove(&tenant)?;
        links.into_iter().find_map(|mut link| {
            link.subscriptions.retain(|known| known.id == subscription);
            (!link.subscriptions.is_empty()).then_some(link)
        })
    }

    /// The products that hear of this: all the tenant is linked to, or the one it is meant for.
    pub fn of<'a>(&'a self, told: &'a Told) -> impl Iterator<Item = &'a Link> {
        let links = self.0.get(&told.tenant_id).map(Vec::as_slice).unwrap_or_default();
        links.iter().filter(|link| told.product.as_ref().is_none_or(|only| *only == link.product))
    }
}
