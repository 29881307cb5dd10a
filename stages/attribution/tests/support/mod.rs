//! A tenant with people, mail to them, and what they did.
#![allow(clippy::unwrap_used, dead_code)]

use chrono::{DateTime, TimeDelta, Utc};
use ledger::{
    attribution::Policy,
    outcomes::{NewOutcome, Premium},
};
use schemas::{Address, AttributionModel, OutcomeType, SendId, month_of, new_id};
use serde_json::{Value, json};
use sqlx::Row;
use stage_rig::{Person, Rig, Tenant};
use uuid::Uuid;

pub struct Shop {
    pub rig: Rig,
    pub tenant: Tenant,
    pub people: Vec<Person>,
}

/// A credited mail.
#[derive(Debug)]
pub struct Credited {
    pub send_id: Uuid,
    pub share: i32,
    pub premium: Option<i64>,
    pub value_cents: Option<i64>,
    pub evidence: Value,
}

impl Shop {
    pub async fn open() -> Self {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        let people = rig.people(&tenant, 4).await;
        // So many days ago may be another month.
        sqlx::query("select 1").execute(&rig.pool).await.unwrap();
        Self { rig, tenant, people }
    }

    pub async fn person(&self, address: &str) -> Person {
        let person = Person { id: new_id(), address: address.to_owned() };
        sqlx::query("insert into contacts (tenant_id, id, address) values ($1, $2, $3)")
            .bind(self.tenant.id)
            .bind(person.id)
            .bind(address)
            .execute(&self.rig.pool)
            .await
            .unwrap();
        person
    }

    /// Merges the first of the people into the second, as the API does.
    pub async fn merge(&self) {
        for sql in [
            "update contacts set status = 'merged', merged_into = $2 where id = $1",
            "update contact_facts set contact_id = $2 where contact_id = $1",
        ] {
            sqlx::query(sql).bind(self.people[0].id).bind(self.people[1].id).execute(&self.rig.pool).await.unwrap();
        }
    }

    /// A campaign's mail that was delivered so many days ago.
    pub async fn mail(&self, to: &Person, days_ago: i64) -> Uuid {
        let list = self.rig.audience(&self.tenant, "list", &[]).await;
        let campaign = self.rig.campaign(&self.tenant, list).await;
        let at = Utc::now() - TimeDelta::days(days_ago);
        let batch = self
            .rig
            .batch(&self.tenant, campaign, schemas::Classification::Marketing, std::slice::from_ref(to))
            .await
            .batch_id;
        sqlx::query(
            "update campaigns set launched_at = $2, month = $3, completed_at = $2, status = 'sent' where id = $1",
        )
        .bind(campaign)
        .bind(at)
        .bind(month_of(batch))
        .execute(&self.rig.pool)
        .await
        .unwrap();
        self.deliver(SendId::of(batch, 0).0, at).await
    }

    /// Mail of its own.
    pub async fn single_mail(&self, to: &Person, days_ago: i64) -> Uuid {
        let send = self.mail(to, days_ago).await;
        sqlx::query("update sends set campaign_id = null, request_id = id where id = $1")
            .bind(send)
            .execute(&self.rig.pool)
            .await
            .unwrap();
        sqlx::query("update batches set campaign_id = null, kind = 'transactional' where id = $1")
            .bind(SendId(send).batch())
            .execute(&self.rig.pool)
            .await
            .unwrap();
        send
    }

    /// Makes a mail one that was requested so many days ago; answers its id.
    pub async fn requested(&self, send: Uuid, days_ago: i64) -> Uuid {
        let at = Utc::now() - TimeDelta::days(days_ago);
        let stamp = uuid::Timestamp::from_unix(uuid::NoContext, u64::try_from(at.timestamp()).unwrap(), 0);
        let batch = SendId(Uuid::new_v7(stamp)).batch();
        let month = month_of(batch);
        // Of the month before, there may be no partition.
        let pool = sqlx::PgPool::connect(&self.rig.database.url()).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!(
            "create table if not exists sends_{} partition of sends for values from ('{month}') to ('{}')",
            month.format("%Y_%m"),
            month + chrono::Months::new(1)
        )))
        .execute(&pool)
        .await
        .unwrap();
        for (sql, before, now) in [
            ("update sends set id = $2, month = $3 where id = $1", send, SendId::of(batch, 0).0),
            ("update batches set id = $2, month = $3 where id = $1", SendId(send).batch(), batch),
        ] {
            sqlx::query(sql).bind(before).bind(now).bind(month).execute(&self.rig.pool).await.unwrap();
        }
        SendId::of(batch, 0).0
    }

    async fn deliver(&self, send: Uuid, at: DateTime<Utc>) -> Uuid {
        sqlx::query("update sends set state = 'sent', decided_at = $2, provider = 'smtp' where id = $1")
            .bind(send)
            .bind(at)
            .execute(&self.rig.pool)
            .await
            .unwrap();
        send
    }

    /// A click by a person, so many days ago; answers its event.
    pub async fn click(&self, send: Uuid, days_ago: i64, link: i32) -> Uuid {
        self.clicked(send, days_ago, link, false).await
    }

    pub async fn machine_click(&self, send: Uuid, days_ago: i64) -> Uuid {
        self.clicked(send, days_ago, 0, true).await
    }

    async fn clicked(&self, send: Uuid, days_ago: i64, link: i32, machine: bool) -> Uuid {
        let at = Utc::now() - TimeDelta::days(days_ago);
        let detail = json!({"url": format!("https://example.com/{link}"), "link": link, "is_machine": machine});
        let event = self.event(send, "clicked", at, detail).await;
        let human = (!machine).then_some(at);
        sqlx::query(
            "update sends set clicked_at = least(clicked_at, $2), human_clicked_at = least(human_clicked_at, $3) where id = $1",
        )
        .bind(send)
        .bind(at)
        .bind(human)
        .execute(&self.rig.pool)
        .await
        .unwrap();
        event
    }

    /// Judges clicks of a mail anew, with all that follows, as `postrider rescore` does.
    pub async fn reclassify(&self, send: Uuid, clicks: &[Uuid], machine: bool) {
        let mut tx = self.rig.pool.begin().await.unwrap();
        sqlx::query(
            "update events set detail = detail || jsonb_build_object('is_machine', $2::bool) where id = any($1)",
        )
        .bind(clicks)
        .bind(machine)
        .execute(&mut *tx)
        .await
        .unwrap();
        sqlx::query(
            "update sends set human_clicked_at = (
                 select min(occurred_at) from events
                 where send_id = $1 and type = 'clicked' and not (detail ->> 'is_machine')::bool)
             where id = $1",
        )
        .bind(send)
        .execute(&mut *tx)
        .await
        .unwrap();
        sqlx::query("insert into late_facts (tenant_id, source, ids) values ($1, 'rescored', array[$2])")
            .bind(self.tenant.id)
            .bind(send)
            .execute(&mut *tx)
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }

    /// Drops the months that these mails are of, as retention does.
    pub async fn drop_ledger(&self, sends: &[Uuid]) {
        let owner = sqlx::PgPool::connect(&self.rig.database.url()).await.unwrap();
        for send in sends {
            for sql in [
                "insert into dropped_months (month) values ($1) on conflict do nothing",
                "delete from sends where month = $1",
                "delete from events where month = $1",
                "delete from contact_facts where $1::date is not null",
            ] {
                sqlx::query(sql).bind(month_of(*send)).execute(&owner).await.unwrap();
            }
        }
    }

    pub async fn bounce(&self, send: Uuid) {
        self.event(send, "bounced", Utc::now(), json!({"class": "hard"})).await;
        sqlx::query("update sends set bounced_at = now() where id = $1")
            .bind(send)
            .execute(&self.rig.pool)
            .await
            .unwrap();
    }

    async fn event(&self, send: Uuid, kind: &str, at: DateTime<Utc>, detail: Value) -> Uuid {
        let event = new_id();
        sqlx::query(
            "insert into events (tenant_id, send_id, id, month, type, occurred_at, detail) values ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(self.tenant.id)
        .bind(send)
        .bind(event)
        .bind(month_of(send))
        .bind(kind)
        .bind(at)
        .bind(detail)
        .execute(&self.rig.pool)
        .await
        .unwrap();
        event
    }

    /// Tells of an outcome of the first of the people, unless it says otherwise.
    pub async fn report_outcome(&self, change: Value) -> Uuid {
        self.report_outcome_as(&self.tenant, change).await
    }

    pub async fn report_outcome_as(&self, tenant: &Tenant, change: Value) -> Uuid {
        let mut body = json!({"contact_email": self.people[0].address, "outcome_type": "bind"});
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        let text = |name: &str| body[name].as_str();
        let of_dollars = body["premium_amount"].as_number().and_then(Premium::of_dollars);
        let new = NewOutcome {
            contact_email: text("contact_email").map(|address| Address::parse(address).unwrap()),
            dot_number: body["dot_number"].as_i64(),
            outcome_type: OutcomeType::parse(text("outcome_type").unwrap()).unwrap(),
            premium: of_dollars.or_else(|| body["premium_cents"].as_i64().and_then(Premium::of_cents)),
            value_cents: body["value_cents"].as_i64(),
            occurred_at: text("occurred_at").map(|at| at.parse().unwrap()),
            source_event_id: text("source_event_id").map(str::to_owned),
        };
        let mut db = self.rig.pool.acquire().await.unwrap();
        ledger::outcomes::record(&mut db, tenant.id, "shop", &new).await.unwrap().outcome_id
    }

    /// Has the stage look at an outcome, as an announcement would.
    pub async fn credit(&self, outcome: Uuid) {
        self.credit_for(&self.tenant, outcome).await;
    }

    pub async fn credit_for(&self, tenant: &Tenant, outcome: Uuid) {
        attribution::testing::credit_outcomes(&self.rig.pool, &[(tenant.id, outcome)]).await.unwrap();
    }

    /// Both sweeps, until neither finds anything.
    pub async fn run_sweeps(&self) {
        attribution::testing::run_sweeps(&self.rig.pool).await.unwrap();
    }

    pub async fn switch(&self, model: AttributionModel) {
        let mut db = self.rig.pool.acquire().await.unwrap();
        Policy { model, ..Policy::default() }.set(&mut db, self.tenant.id).await.unwrap();
        self.run_sweeps().await;
    }

    pub async fn credits(&self, outcome: Uuid) -> Vec<Credited> {
        let rows = sqlx::query("select * from outcome_credits where outcome_id = $1 order by share, send_id")
            .bind(outcome)
            .fetch_all(&self.rig.pool)
            .await
            .unwrap();
        rows.iter()
            .map(|row| Credited {
                send_id: row.get("send_id"),
                share: row.get("share"),
                premium: row.get("premium"),
                value_cents: row.get("value_cents"),
                evidence: row.get("evidence"),
            })
            .collect()
    }

    pub async fn credited(&self, outcome: Uuid) -> Vec<(Uuid, i32)> {
        self.credits(outcome).await.iter().map(|credit| (credit.send_id, credit.share)).collect()
    }

    pub async fn reasons(&self, outcome: Uuid) -> Vec<String> {
        sqlx::query_scalar("select reason from outcome_restatements where outcome_id = $1 order by revision")
            .bind(outcome)
            .fetch_all(&self.rig.pool)
            .await
            .unwrap()
    }

    pub async fn notices(&self, outcome: Uuid) -> Vec<Value> {
        sqlx::query_scalar(
            "select data from notices where subject_id = $1 and type = 'outcome.credited' order by (data->>'revision')::int",
        )
        .bind(outcome)
        .fetch_all(&self.rig.pool)
        .await
        .unwrap()
    }

    pub async fn contact_of(&self, outcome: Uuid) -> Option<Uuid> {
        sqlx::query_scalar("select contact_id from outcomes where id = $1")
            .bind(outcome)
            .fetch_one(&self.rig.pool)
            .await
            .unwrap()
    }

    pub async fn campaign_of(&self, send: Uuid) -> Option<Uuid> {
        sqlx::query_scalar("select campaign_id from sends where id = $1")
            .bind(send)
            .fetch_one(&self.rig.pool)
            .await
            .unwrap()
    }

    pub async fn is_due_now(&self, outcome: Uuid) -> bool {
        sqlx::query_scalar("select coalesce(credit_due <= now(), false) from outcomes where id = $1")
            .bind(outcome)
            .fetch_one(&self.rig.pool)
            .await
            .unwrap()
    }

    /// Campaigns' totals by type: outcomes and premium.
    pub async fn totals(&self) -> Vec<(String, i64, i64)> {
        sqlx::query_as(
            "select outcome_type, sum(outcomes)::bigint, sum(premium)::bigint from campaign_outcomes group by 1 order by 1",
        )
        .fetch_all(&self.rig.pool)
        .await
        .unwrap()
    }

    /// The totals equal a recount.
    pub async fn assert_totals(&self) {
        let faults = attribution::recount(&mut self.rig.pool.acquire().await.unwrap(), None).await.unwrap();
        assert!(faults.is_empty(), "{faults:?}");
    }
}
