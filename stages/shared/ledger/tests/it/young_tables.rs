//! Tables without statistics: the first campaign of a month, and of an installation.

use chrono::{DateTime, NaiveDate, Utc};
use rstest::rstest;
use schemas::{Classification, SendId};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection};
use stage_rig::Rig;
use uuid::Uuid;

const PEOPLE: usize = 1_000;
/// Signals of one group.
const TOLD: u16 = 500;

#[derive(Debug, Clone, Copy)]
enum Takes {
    Sends,
    Contacts,
    Fold,
    Evidence,
}

/// What a statement is asked about.
struct Told {
    tenants: Vec<Uuid>,
    sends: Vec<Uuid>,
    contacts: Vec<Uuid>,
    months: Vec<NaiveDate>,
    at: Vec<DateTime<Utc>>,
}

/// Half of a campaign's recipients; nobody has analysed a table, and nobody will.
async fn told(rig: &Rig) -> Told {
    for table in ["sends", "contacts", "suppressions", "events"] {
        let partitions = "select inhrelid::regclass::text from pg_inherits where inhparent = $1::regclass";
        let mut tables: Vec<String> =
            sqlx::query_scalar(partitions).bind(table).fetch_all(&owner(rig).await).await.unwrap();
        if tables.is_empty() {
            tables.push(table.to_owned());
        }
        for table in tables {
            let never = format!("alter table {table} set (autovacuum_enabled = off)");
            sqlx::query(AssertSqlSafe(never)).execute(&owner(rig).await).await.unwrap();
        }
    }
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, PEOPLE).await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let campaign = rig.campaign(&tenant, list).await;
    let mut batches = Vec::new();
    for people in people.chunks(usize::from(TOLD)) {
        batches.push(rig.batch(&tenant, campaign, Classification::Marketing, people).await.batch_id);
    }
    let sends: Vec<Uuid> = (0..TOLD).map(|ordinal| SendId::of(batches[0], ordinal).0).collect();
    Told {
        tenants: vec![tenant.id; sends.len()],
        months: sends.iter().map(|id| SendId(*id).month()).collect(),
        at: vec![Utc::now(); sends.len()],
        contacts: people[..sends.len()].iter().map(|person| person.id).collect(),
        sends,
    }
}

async fn owner(rig: &Rig) -> sqlx::PgPool {
    sqlx::PgPool::connect(&rig.database.url()).await.unwrap()
}

async fn plan_of(db: &mut PgConnection, statement: &'static str, takes: Takes, told: &Told) -> Value {
    let explained = sqlx::query_scalar(AssertSqlSafe(format!("explain (analyze, format json)\n{statement}")));
    let explained = match takes {
        Takes::Contacts => explained.bind(&told.tenants).bind(&told.contacts),
        _ => explained.bind(&told.tenants).bind(&told.sends).bind(&told.months),
    };
    let explained = match takes {
        Takes::Sends | Takes::Contacts => explained,
        Takes::Fold => {
            let (at, no) = (&told.at, vec![false; told.sends.len()]);
            let five = explained.bind(at).bind(at).bind(at).bind(at).bind(at);
            five.bind(at).bind(no.clone()).bind(at).bind(at).bind(at).bind(no)
        }
        Takes::Evidence => {
            let texts = vec!["ses".to_owned(); told.sends.len()];
            explained.bind(&told.at).bind(texts.clone()).bind(texts)
        }
    };
    let plans: Value = explained.fetch_one(db).await.unwrap();
    plans[0]["Plan"].clone()
}

/// Rows that a plan's nodes made or looked at in vain, loops included.
fn rows_handled(plan: &Value) -> f64 {
    let number = |name: &str| plan.get(name).and_then(Value::as_f64).unwrap_or(0.0);
    let in_vain = number("Rows Removed by Join Filter") + number("Rows Removed by Filter");
    let own = (number("Actual Rows") + in_vain) * number("Actual Loops").max(1.0);
    let below = plan.get("Plans").and_then(Value::as_array).map_or(0.0, |plans| plans.iter().map(rows_handled).sum());
    own + below
}

#[rstest]
#[case::recipients(include_str!("../../queries/facts/recipients.sql"), Takes::Sends)]
#[case::lock(include_str!("../../queries/suppressions/lock_contacts.sql"), Takes::Contacts)]
#[case::progress(include_str!("../../queries/facts/send_progress.sql"), Takes::Sends)]
#[case::clicks(include_str!("../../queries/facts/clicks.sql"), Takes::Sends)]
#[case::touches(include_str!("../../queries/facts/touches.sql"), Takes::Sends)]
#[case::fold(include_str!("../../queries/facts/fold.sql"), Takes::Fold)]
#[case::resolve(include_str!("../../queries/facts/resolve_unknown.sql"), Takes::Evidence)]
#[tokio::test]
async fn signals_find_their_recipients_by_key_in_tables_without_statistics(
    #[case] statement: &'static str,
    #[case] takes: Takes,
) {
    let rig = Rig::new().await;
    let told = told(&rig).await;
    let by_key = runtime::plans::PreparedPool::new(&rig.pool, 1);
    let mut tx = by_key.begin().await.unwrap();
    let plan = plan_of(&mut tx, statement, takes, &told).await;
    let handled = rows_handled(&plan);
    // A dozen nodes of five hundred rows each. All sends with all contacts would be half a million.
    assert!(handled < 40.0 * f64::from(TOLD), "{handled} rows were handled: {plan:#}");
}
