//! Sequences and enrollments, as the ingress would have written them.

use std::time::Duration;

use runner::Deps;
use runtime::plans::PreparedPool;
use schemas::new_id;
use sequencing::Settings;
use serde_json::{Value, json};
use sqlx::PgPool;
use stage_rig::{Person, Rig, Tenant, settings, until};
use uuid::Uuid;

/// A step: type, config, delay in minutes.
pub(crate) type Step<'a> = (&'a str, Value, i32);

/// A step at once.
pub(crate) fn step(kind: &str, config: Value) -> Step<'_> {
    (kind, config, 0)
}

pub(crate) struct World {
    pub(crate) rig: Rig,
    pub(crate) tenant: Tenant,
    pub(crate) template: Uuid,
}

impl World {
    pub(crate) async fn new() -> Self {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        let template = template(&rig.pool, &tenant).await;
        Self { rig, tenant, template }
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.rig.pool
    }

    /// Starts the stage as one process would.
    pub(crate) async fn start(&self, arguments: &[&str]) -> Deps {
        self.start_with(&settings::<Settings>(arguments)).await
    }

    /// Starts a process whose groups are small.
    pub(crate) async fn start_in_groups_of(&self, group_max: u16) -> Deps {
        self.start_with(&Settings { group_max, ..settings::<Settings>(&[]) }).await
    }

    /// Starts a process that gives up a look at a trigger after this time.
    pub(crate) async fn start_looking_for(&self, look_max: Duration) -> Deps {
        self.start_with(&Settings { look_max, ..settings::<Settings>(&[]) }).await
    }

    async fn start_with(&self, settings: &Settings) -> Deps {
        let deps = self.rig.process();
        sequencing::start(&deps, settings);
        deps
    }

    pub(crate) async fn sequence(&self, steps: &[Step<'_>]) -> Uuid {
        sequence(self.pool(), &self.tenant, self.template, steps).await
    }

    /// Enrolls these people; their first step is due in so many seconds.
    pub(crate) async fn enroll(&self, sequence: Uuid, people: &[Person], in_seconds: i32) {
        enroll(self.pool(), &self.tenant, sequence, people, in_seconds).await;
    }

    pub(crate) async fn number(&self, query: &'static str) -> i64 {
        self.rig.number(query).await
    }

    pub(crate) async fn text(&self, query: &'static str) -> String {
        sqlx::query_scalar(query).fetch_one(self.pool()).await.unwrap()
    }

    pub(crate) async fn execute(&self, statement: &'static str) {
        sqlx::query(statement).execute(self.pool()).await.unwrap();
    }

    /// Sets all batches aside for a day, as a stage does whose process ends each time it works on one.
    pub(crate) async fn set_aside(&self) {
        let by_key = PreparedPool::new(self.pool(), 1).bulk("test");
        let batches: Vec<(Uuid, Uuid)> =
            sqlx::query_as("select tenant_id, id from batches").fetch_all(self.pool()).await.unwrap();
        for (tenant, batch) in batches {
            ledger::owed::set_aside(&by_key, tenant, batch).await.unwrap();
        }
    }

    /// Waits until no enrollment is live.
    pub(crate) async fn over(&self) {
        until("all enrollments over", async || {
            self.number("select count(*) from enrollments where status in ('active', 'paused')").await == 0
        })
        .await;
    }

    /// How enrollments ended, as their products are told, in order of the words: type, reason or error, step.
    pub(crate) async fn told(&self) -> Vec<String> {
        sqlx::query_scalar(
            "select concat_ws(' ', type, data ->> 'exit_reason', data ->> 'error', data ->> 'step_order') from notices n
             where type like 'enrollment.%' or type = 'sequence.completed'
             order by 1",
        )
        .fetch_all(self.pool())
        .await
        .unwrap()
    }

    /// The states of all enrollments with their reasons, in order.
    pub(crate) async fn states(&self) -> Vec<String> {
        sqlx::query_scalar("select concat_ws(' ', status, exit_reason) from enrollments order by created_at, id")
            .fetch_all(self.pool())
            .await
            .unwrap()
    }
}

pub(crate) async fn template(pool: &PgPool, tenant: &Tenant) -> Uuid {
    let id = new_id();
    sqlx::query(
        "insert into templates (tenant_id, id, name, template_type, status, version, content_id)
         values ($1, $2, 'Welcome', 'sequence', 'active', 1, $3)",
    )
    .bind(tenant.id)
    .bind(id)
    .bind(tenant.content)
    .execute(pool)
    .await
    .unwrap();
    id
}

pub(crate) async fn sequence(pool: &PgPool, tenant: &Tenant, template: Uuid, steps: &[Step<'_>]) -> Uuid {
    let id = new_id();
    sqlx::query(
        "insert into sequences (tenant_id, id, product, environment, name, sender_profile_id, status)
         values ($1, $2, 'shop', 'production', 'Welcome', $3, 'active')",
    )
    .bind(tenant.id)
    .bind(id)
    .bind(tenant.sender)
    .execute(pool)
    .await
    .unwrap();
    for ((kind, config, delay), order) in steps.iter().zip(1_i16..) {
        sqlx::query(
            "insert into sequence_steps (tenant_id, id, sequence_id, step_order, step_type, template_id, delay_amount, action_config)
             values ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(tenant.id)
        .bind(new_id())
        .bind(id)
        .bind(order)
        .bind(kind)
        .bind((*kind == "send_email").then_some(template))
        .bind(delay)
        .bind(config)
        .execute(pool)
        .await
        .unwrap();
    }
    id
}

pub(crate) async fn enroll(pool: &PgPool, tenant: &Tenant, sequence: Uuid, people: &[Person], in_seconds: i32) {
    let contacts: Vec<Uuid> = people.iter().map(|person| person.id).collect();
    sqlx::query(
        "insert into enrollments (tenant_id, id, sequence_id, contact_id, product, next_action_at)
         select $1, gen_random_uuid(), $2, w, 'shop', now() + make_interval(secs => $4) from unnest($3::uuid[]) as w",
    )
    .bind(tenant.id)
    .bind(sequence)
    .bind(&contacts)
    .bind(f64::from(in_seconds))
    .execute(pool)
    .await
    .unwrap();
}

/// A field that the tenant defined.
pub(crate) async fn field(world: &World, key: &str) {
    sqlx::query("insert into fields (tenant_id, id, key, label, type) values ($1, $2, $3, $3, 'string')")
        .bind(world.tenant.id)
        .bind(new_id())
        .bind(key)
        .execute(world.pool())
        .await
        .unwrap();
}

/// A send of the enrollment's first step, as if it had been mailed before.
pub(crate) async fn earlier_mail(world: &World, sequence: Uuid) -> Uuid {
    let send = schemas::new_batch_id();
    sqlx::query(
        "insert into sequence_sends (tenant_id, send_id, sequence_id, enrollment_id, step_id)
         select e.tenant_id, $2, e.sequence_id, e.id, p.id
         from enrollments e
         join sequence_steps p on p.tenant_id = e.tenant_id and p.sequence_id = e.sequence_id and p.step_order = 1
         where e.sequence_id = $1",
    )
    .bind(sequence)
    .bind(send)
    .execute(world.pool())
    .await
    .unwrap();
    send
}

pub(crate) fn mail() -> Step<'static> {
    step("send_email", json!({}))
}

pub(crate) fn task() -> Step<'static> {
    ("create_task", json!({"title": "Call"}), 0)
}
