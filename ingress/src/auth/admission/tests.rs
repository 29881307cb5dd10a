use std::collections::{HashMap, HashSet};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use runtime::{Database, Role};
use secrecy::SecretString;
use servers::TestDatabase;

use super::*;
use crate::act::Reach;

async fn connections(database: &TestDatabase) -> PgPool {
    let pool = Database::pool(&SecretString::from(database.url()), Role::Ingress, 2).unwrap();
    Reach::One.connections(&pool)
}

fn signed(key: u128, nonce: &str, limit: u32) -> Wanted {
    Wanted { key_id: Uuid::from_u128(key), nonce: Some(nonce.to_owned()), limit, named: None }
}

/// What one request after the other would be told: whether its nonce is fresh, and its number in the minute.
#[derive(Default)]
struct OneByOne {
    nonces: HashSet<(Uuid, String)>,
    used: HashMap<Uuid, u32>,
}

impl OneByOne {
    fn admit(&mut self, wanted: &Wanted) -> (bool, Option<u32>) {
        let is_fresh = wanted.nonce.as_ref().is_none_or(|nonce| self.nonces.insert((wanted.key_id, nonce.clone())));
        let used = (is_fresh && wanted.limit > 0).then(|| {
            let used = self.used.entry(wanted.key_id).or_default();
            *used += 1;
            *used
        });
        (is_fresh, used)
    }
}

#[tokio::test]
async fn requests_admitted_together_are_told_what_one_after_the_other_would_be() {
    const MINUTE: u64 = 60;
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = connections(&database).await;
    let minute = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() / MINUTE;
    for seed in 0.. {
        let mut dice = StdRng::seed_from_u64(seed);
        let (mut told, mut expected, mut model) = (Vec::new(), Vec::new(), OneByOne::default());
        let begun = minute();
        for _ in 0..60 {
            let group: Vec<Wanted> = (0..dice.random_range(1..=GROUP_MAX))
                .map(|_| Wanted {
                    key_id: Uuid::from_u128(u128::from(seed) << 64 | dice.random_range(1..=3)),
                    nonce: dice.random_bool(0.9).then(|| dice.random_range(0..600_u32).to_string()),
                    limit: if dice.random_bool(0.8) { 120 } else { 0 },
                    named: None,
                })
                .collect();
            expected.extend(group.iter().map(|wanted| model.admit(wanted)));
            let admitted = admit_group(&pool, &group).await.unwrap();
            told.extend(admitted.iter().map(|one| (one.nonce_is_fresh, one.rate.map(|rate| rate.used))));
        }
        if begun == minute() {
            assert_eq!(told, expected);
            return;
        }
        // The counts began anew in between. Once more, with other keys.
    }
}

#[tokio::test]
async fn a_tenant_is_found_by_the_name_of_its_own_product_and_environment_only() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = connections(&database).await;
    let tenant = schemas::new_id();
    let owner = sqlx::PgPool::connect(&database.url()).await.unwrap();
    sqlx::query("insert into tenants (id, environment, owner_email) values ($1, 'production', 'o@example.com')")
        .bind(tenant)
        .execute(&owner)
        .await
        .unwrap();
    sqlx::query(
        "insert into tenant_links (product, environment, product_tenant_id, tenant_id, owner_email)
         values ('shop', 'production', 'acme', $1, 'o@example.com')",
    )
    .bind(tenant)
    .execute(&owner)
    .await
    .unwrap();
    let names = [
        ("shop", "production", "acme", Some(tenant)),
        ("crm", "production", "acme", None),
        ("shop", "sandbox", "acme", None),
        ("shop", "production", "other", None),
    ];
    let wanted: Vec<Wanted> = names
        .iter()
        .map(|(product, environment, product_tenant_id, _)| Wanted {
            named: Some(Named {
                product: (*product).to_owned(),
                environment,
                product_tenant_id: (*product_tenant_id).to_owned(),
            }),
            ..signed(1, &format!("{product} {environment} {product_tenant_id}"), 0)
        })
        .collect();
    let found: Vec<Option<Uuid>> =
        admit_group(&pool, &wanted).await.unwrap().iter().map(|admission| admission.tenant).collect();
    assert_eq!(found, names.map(|(.., expected)| expected));
}

#[tokio::test]
async fn a_request_that_postgres_refuses_costs_itself_only() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = connections(&database).await;
    let group = [signed(1, "good", 120), signed(1, "no \0 text", 120), signed(1, "good too", 120)];
    let admitted = admit_each(&pool, &group).await;
    let told: Vec<Result<Option<u32>, bool>> = admitted
        .into_iter()
        .map(|one| one.map(|one| one.rate.map(|rate| rate.used)).map_err(|failed| failed.is_transient))
        .collect();
    assert_eq!(told, [Ok(Some(1)), Err(false), Ok(Some(2))]);
}
