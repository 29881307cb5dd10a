use std::collections::{HashMap, HashSet};

use devtools::servers::TestDatabase;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use runtime::{Database, Role, plans::PreparedPool};
use secrecy::SecretString;

use super::*;

async fn connections(database: &TestDatabase) -> PreparedPool {
    let pool = Database::pool(&SecretString::from(database.url()), Role::Ingress, 2).unwrap();
    PreparedPool::new(&pool, 2)
}

fn signed(key: u128, nonce: &str, limit: u32) -> AdmissionRequest {
    AdmissionRequest {
        key_id: Uuid::from_u128(key),
        rate_key: Uuid::from_u128(key),
        nonce: Some(nonce.to_owned()),
        limit,
        named: None,
    }
}

/// What one request after the other would be told: whether its nonce is fresh, and its number in the minute; 0 for one too many.
#[derive(Default)]
struct OneByOne {
    nonces: HashSet<(Uuid, String)>,
    used: HashMap<Uuid, u32>,
}

/// The number a request is told, if it is admitted; 0 if not.
fn number(rate: RateState) -> u32 {
    if rate.is_exceeded() { 0 } else { rate.used }
}

impl OneByOne {
    fn admit(&mut self, wanted: &AdmissionRequest) -> (bool, Option<u32>) {
        let is_fresh = wanted.nonce.as_ref().is_none_or(|nonce| self.nonces.insert((wanted.key_id, nonce.clone())));
        let used = (is_fresh && wanted.limit > 0).then(|| {
            let used = self.used.entry(wanted.rate_key).or_default();
            if *used >= wanted.limit {
                return 0;
            }
            *used += 1;
            *used
        });
        (is_fresh, used)
    }
}

#[tokio::test]
async fn requests_admitted_together_are_told_what_one_after_the_other_would_be() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = connections(&database).await;
    for seed in 0..3 {
        let mut dice = StdRng::seed_from_u64(seed);
        let (mut told, mut expected, mut model) = (Vec::new(), Vec::new(), OneByOne::default());
        for _ in 0..60 {
            let group: Vec<AdmissionRequest> = (0..dice.random_range(1..=GROUP_MAX))
                .map(|_| AdmissionRequest {
                    key_id: Uuid::from_u128(u128::from(seed) << 64 | dice.random_range(1..=3)),
                    // Two of the keys may share a limit.
                    rate_key: Uuid::from_u128(u128::from(seed) << 64 | dice.random_range(1..=2)),
                    nonce: dice.random_bool(0.9).then(|| dice.random_range(0..600_u32).to_string()),
                    limit: if dice.random_bool(0.8) { 120 } else { 0 },
                    named: None,
                })
                .collect();
            expected.extend(group.iter().map(|wanted| model.admit(wanted)));
            let admitted = admit_group(&pool, &group).await.unwrap();
            told.extend(admitted.iter().map(|one| (one.nonce_is_fresh, one.rate.map(number))));
        }
        assert_eq!(told, expected);
    }
}

/// As if so much time had passed: what was counted was counted earlier.
async fn pass(database: &TestDatabase, seconds: i32) {
    let owner = sqlx::PgPool::connect(&database.url()).await.unwrap();
    sqlx::query("update rate_counts set bucket = bucket - $1")
        .bind(i64::from(seconds / 2))
        .execute(&owner)
        .await
        .unwrap();
}

#[tokio::test]
async fn no_sixty_seconds_have_more_than_the_limit_wherever_they_begin() {
    const LIMIT: u32 = 12;
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = connections(&database).await;
    let wanted = AdmissionRequest { nonce: None, ..signed(1, "", LIMIT) };
    let mut admitted_at: Vec<i32> = Vec::new();
    // Four a step, asked for without a pause, over more than three minutes.
    for step in 0..34 {
        let now = step * 6;
        for admission in admit_group(&pool, &vec![wanted.clone(); 4]).await.unwrap() {
            let rate = admission.rate.unwrap();
            if rate.is_exceeded() {
                assert!((1..=60).contains(&rate.resets_in), "{rate:?}");
            } else {
                admitted_at.push(now);
            }
        }
        pass(&database, 6).await;
    }
    for begun in 0..200 {
        let within = admitted_at.iter().filter(|at| (begun..begun + 60).contains(*at)).count();
        assert!(within <= LIMIT as usize, "{within} within a minute from {begun}: {admitted_at:?}");
    }
    // And a caller who does not stop asking is not locked out.
    assert!(admitted_at.len() >= 2 * LIMIT as usize, "{admitted_at:?}");
}

#[tokio::test]
async fn a_refused_request_hears_when_there_is_room_and_there_is() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = connections(&database).await;
    let ask = async |count: usize| {
        let wanted = AdmissionRequest { nonce: None, ..signed(1, "", 3) };
        let admitted = admit_group(&pool, &vec![wanted; count]).await.unwrap();
        admitted.into_iter().map(|one| one.rate.unwrap()).collect::<Vec<RateState>>()
    };
    assert!(ask(2).await.iter().all(|rate| !rate.is_exceeded()));
    pass(&database, 30).await;
    assert_eq!(ask(2).await.iter().map(|rate| rate.is_exceeded()).collect::<Vec<_>>(), [false, true]);
    let wait = ask(1).await[0].resets_in;
    assert!((25..=35).contains(&wait), "{wait}");
    // Requests of two seconds are counted together.
    pass(&database, i32::try_from(wait).unwrap() + 2).await;
    assert_eq!(ask(3).await.iter().map(|rate| rate.is_exceeded()).collect::<Vec<_>>(), [false, false, true]);
}

#[tokio::test]
async fn a_clock_that_is_set_back_locks_no_key_out() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = connections(&database).await;
    let wanted = AdmissionRequest { nonce: None, ..signed(1, "", 2) };
    let refused = async || {
        let admitted = admit_group(&pool, &vec![wanted.clone(); 3]).await.unwrap();
        admitted.into_iter().map(|one| one.rate.unwrap().is_exceeded()).collect::<Vec<bool>>()
    };
    assert_eq!(refused().await, [false, false, true]);
    // By less than a minute the counts stay: the limit holds.
    pass(&database, -20).await;
    assert_eq!(refused().await, [true, true, true]);
    pass(&database, -3600).await;
    assert_eq!(refused().await, [false, false, true]);
    assert_eq!(refused().await, [true, true, true]);
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
    let wanted: Vec<AdmissionRequest> = names
        .iter()
        .map(|(product, environment, product_tenant_id, _)| AdmissionRequest {
            named: Some(NamedTenant {
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
    let admitted = commit_each(&mut Admitter(pool), &group).await;
    let told: Vec<Result<bool, bool>> = admitted
        .into_iter()
        .map(|one| one.map(|one| one.nonce_is_fresh).map_err(|failed| failed == NotCommitted::Away))
        .collect();
    assert_eq!(told, [Ok(true), Err(false), Ok(true)]);
}

/// As the queue does it, with two processes: what each of many simultaneous requests is told.
#[tokio::test(flavor = "multi_thread")]
async fn of_requests_with_one_nonce_at_two_processes_one_is_fresh_and_each_count_is_told_once() {
    const REQUESTS: u32 = 400;
    const NONCES: u32 = 150;
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = Database::pool(&SecretString::from(database.url()), Role::Ingress, 2).unwrap();
    let processes = [Admissions::start(PreparedPool::new(&pool, 2)), Admissions::start(PreparedPool::new(&pool, 2))];
    for key in 1..=3 {
        // In opposite orders, so that they meet each other's locks.
        let asked = (0..REQUESTS).map(|n| {
            let nonce = if n % 2 == 0 { n / 2 % NONCES } else { NONCES - 1 - n / 2 % NONCES };
            processes[(n % 2) as usize].admit(signed(key, &nonce.to_string(), 10_000))
        });
        let told: Vec<Admission> = futures::future::try_join_all(asked).await.unwrap();
        let mut counts: Vec<u32> = told.iter().filter_map(|one| one.rate.map(|rate| rate.used)).collect();
        counts.sort_unstable();
        assert_eq!(counts, (1..=NONCES).collect::<Vec<u32>>());
        assert_eq!(told.iter().filter(|one| one.nonce_is_fresh).count(), NONCES as usize);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_postgres_is_stuck_everybody_is_refused_in_time_and_afterwards_admitted_again() {
    const REQUESTS: usize = 500;
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = Database::pool(&SecretString::from(database.url()), Role::Ingress, 2).unwrap();
    let admissions = Admissions::start(PreparedPool::new(&pool, 2));
    let owner = sqlx::PgPool::connect(&database.url()).await.unwrap();
    let mut lock = owner.begin().await.unwrap();
    sqlx::query("lock table nonces").execute(&mut *lock).await.unwrap();
    let asked = (0..REQUESTS).map(|n| admissions.admit(signed(1, &n.to_string(), 0)));
    let told = tokio::time::timeout(ADMISSION_TIMEOUT * 2, futures::future::join_all(asked)).await.unwrap();
    assert!(told.iter().all(|one| one.as_ref().is_err_and(|error| error.status == 503)), "{told:?}");
    lock.rollback().await.unwrap();
    let admission = admissions.admit(signed(1, "afterwards", 0)).await.unwrap();
    assert!(admission.nonce_is_fresh);
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_a_group_begins_every_two_milliseconds_at_most() {
    const BURSTS: u32 = 100;
    const REQUESTS: u32 = 20;
    /// The first ones may be small: load is not noticed before the first that is not.
    const BEFORE_IT_IS_NOTICED: u128 = 5;
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = Database::pool(&SecretString::from(database.url()), Role::Ingress, 2).unwrap();
    let admissions = std::sync::Arc::new(Admissions::start(PreparedPool::new(&pool, 2)));
    admissions.admit(signed(2, "connects", 0)).await.unwrap();
    let begun = std::time::Instant::now();
    let mut asked = tokio::task::JoinSet::new();
    for burst in 0..BURSTS {
        for n in 0..REQUESTS {
            let admissions = std::sync::Arc::clone(&admissions);
            asked.spawn(async move { admissions.admit(signed(1, &format!("{burst} {n}"), 0)).await.map(drop) });
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for admitted in asked.join_all().await {
        admitted.unwrap();
    }
    let most = begun.elapsed().as_millis() / GATHERING.window.as_millis() + BEFORE_IT_IS_NOTICED;
    let owner = sqlx::PgPool::connect(&database.url()).await.unwrap();
    let key = Uuid::from_u128(1);
    let sql = "select count(*), count(distinct xmin::text) from nonces where key_id = $1";
    let (nonces, groups): (i64, i64) = sqlx::query_as(sql).bind(key).fetch_one(&owner).await.unwrap();
    assert_eq!(nonces, i64::from(BURSTS * REQUESTS));
    assert!(u128::try_from(groups).unwrap() <= most, "{groups} groups, at most {most}");
}
