//! What a fence leaves in the ledger before the answer comes.

use std::time::Duration;

use chrono::Utc;
use rstest::rstest;
use runtime::plans::PreparedPool;
use schemas::{
    Classification, Lane, MessageKind, Rendered, RenderedRecipient, Signal, SignalKind, SkeletonId, new_id,
    token::TokenKeyId,
};
use stage_rig::{Person, Rig, Tenant};
use uuid::Uuid;

use super::{Answer, Change, Fence, Ledger, LedgerSettings, SendAttempt, WINDOW};
use crate::facts::{self, ProviderEvidence, RecordedSignals};
use crate::owed::find_owed;
use crate::quota::QuotaDefaults;
use crate::warmup::WarmupPermits;

/// A tenant, and the writer of a delivery process.
struct World {
    rig: Rig,
    tenant: Tenant,
    ledger: Ledger,
}

/// A batch of one mail. Its id is also that of the send.
struct Mail {
    id: Uuid,
    recipient: Person,
}

impl World {
    async fn new() -> Self {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        let (fence_lease, quota) = (Duration::from_secs(60), QuotaDefaults::default());
        let ledger = Ledger::start(&rig.pool, LedgerSettings { window: WINDOW, fence_lease, quota }).unwrap();
        Self { rig, tenant, ledger }
    }

    async fn campaign_mail(&self) -> Mail {
        let list = self.rig.audience(&self.tenant, "list", &[]).await;
        let campaign = self.rig.campaign(&self.tenant, list).await;
        let mut people = self.rig.people(&self.tenant, 1).await;
        let id = self.rig.batch(&self.tenant, campaign, Classification::Marketing, &people).await.batch_id;
        Mail { id, recipient: people.remove(0) }
    }

    /// Mail that is tried once more when its outcome is unknown.
    async fn transactional_mail(&self) -> Mail {
        let mail = self.campaign_mail().await;
        for sql in [
            "update batches set kind = 'transactional', classification = 'transactional', campaign_id = null where id = $1",
            "update sends set campaign_id = null, request_id = id where id = $1",
        ] {
            sqlx::query(sql).bind(mail.id).execute(&self.rig.pool).await.unwrap();
        }
        mail
    }

    /// An attempt at this mail over a provider route of this kind.
    async fn owed(&self, mail: &Mail, provider: &'static str) -> SendAttempt {
        let rendered = Rendered {
            tenant_id: self.tenant.id,
            batch_id: mail.id,
            campaign_id: None,
            kind: MessageKind::Campaign,
            lane: Lane::Bulk,
            part: 0,
            skeleton: SkeletonId(String::new()),
            token_key: TokenKeyId::default(),
            sending_domain: String::new(),
            return_path_domain: String::new(),
            recipients: vec![RenderedRecipient::new(0, mail.recipient.id, &mail.recipient.address, &[])],
            notify: None,
        };
        let (by_key, token) = (PreparedPool::new(&self.rig.pool, 1), self.ledger.session().token());
        let mut found = find_owed(&by_key, &[rendered], token, &WarmupPermits::default()).await.unwrap();
        SendAttempt { provider: Some(provider), ..found.sendable.remove(0).send }
    }

    /// The attempt after its fence.
    async fn fenced(&self, mail: &Mail, provider: &'static str) -> SendAttempt {
        let send = self.owed(mail, provider).await;
        let Fence::Passed { metered_on, .. } = self.ledger.fence(send.clone()).await else { panic!("not fenced") };
        send.fenced(Some(metered_on))
    }

    async fn record(&self, change: Change) {
        self.ledger.record(change).await.await.unwrap();
    }

    async fn report(&self, signals: &[Signal], evidence: &[ProviderEvidence]) -> RecordedSignals {
        let mut tx = self.rig.pool.begin().await.unwrap();
        let recorded = facts::record(&mut tx, signals, evidence, 0).await.unwrap();
        tx.commit().await.unwrap();
        recorded
    }

    /// The report that this mail was delivered.
    fn delivered(&self, mail: &Mail) -> Signal {
        Signal {
            signal_id: new_id(),
            tenant_id: self.tenant.id,
            send_id: mail.id,
            occurred_at: Utc::now(),
            kind: SignalKind::Delivered,
            ip: None,
            user_agent: None,
        }
    }

    /// Sets the limit of mails in a month.
    async fn limit(&self, monthly: i64) {
        sqlx::query("insert into send_limits (tenant_id, monthly) values ($1, $2)")
            .bind(self.tenant.id)
            .bind(monthly)
            .execute(&self.rig.pool)
            .await
            .unwrap();
    }

    /// Asserts the usage, which equals the number of sends with a fence.
    async fn assert_used(&self, expected: i64) {
        let used = self.rig.number("select coalesce(sum(used), 0)::int8 from send_usage").await;
        let fenced = self.rig.number("select count(*) from sends where fenced_at is not null").await;
        assert_eq!((used, fenced), (expected, expected));
    }
}

/// The receiving server reports the delivery before it answers; a provider reports it by an event.
#[rstest]
#[case::smtp("smtp", 0)]
#[case::http("ses", 1)]
#[tokio::test]
async fn a_delivery_reported_before_the_acceptance_counts_once(
    #[case] provider: &'static str,
    #[case] confirmed: i64,
    #[values(false, true)] is_transactional: bool,
) {
    let world = World::new().await;
    let mail = if is_transactional { world.transactional_mail().await } else { world.campaign_mail().await };
    let fenced = world.fenced(&mail, provider).await;
    world.report(&[world.delivered(&mail)], &[]).await;
    world.rig.assert_books().await;
    let known = sqlx::query_scalar::<_, Option<String>>("select provider from sends").fetch_one(&world.rig.pool).await;
    assert_eq!(known.unwrap().as_deref(), Some(provider), "which decides what event the report becomes");
    world.record(Change::sent(fenced, Answer::default()).by(provider, None)).await;
    world.rig.assert_books().await;
    let total = "select coalesce(sum(count), 0)::int8 from rollups where event = 'delivered'";
    assert_eq!(world.rig.number(total).await, 1);
    assert_eq!(world.rig.number("select delivered::int8 from batches").await, 1);
    assert_eq!(world.rig.number("select confirmed::int8 from batches").await, confirmed);
}

#[rstest]
#[case::accepted_by_a_relay("ses", "smtp")]
#[case::accepted_by_a_provider("smtp", "ses")]
#[case::accepted_by_the_same("ses", "ses")]
#[tokio::test]
async fn a_delivery_reported_of_a_deferred_attempt_counts_once(
    #[case] first: &'static str,
    #[case] next: &'static str,
    #[values(false, true)] is_accepted: bool,
) {
    let world = World::new().await;
    let mail = world.campaign_mail().await;
    let fenced = world.fenced(&mail, first).await;
    world.report(&[world.delivered(&mail)], &[]).await;
    world.record(Change::deferred(fenced, "temporary", Answer::default(), Duration::ZERO)).await;
    world.rig.assert_books().await;
    let repeated = world.fenced(&mail, next).await;
    world.rig.assert_books().await;
    let end = if is_accepted {
        Change::sent(repeated, Answer::default())
    } else {
        Change::failed(repeated, "block", Answer::default(), None)
    };
    world.record(end.by(next, None)).await;
    world.report(&[world.delivered(&mail)], &[]).await;
    world.rig.assert_books().await;
    assert!(world.rig.number("select delivered::int8 from batches").await <= 1);
}

#[tokio::test]
async fn mail_that_waited_through_two_nights_is_still_owed() {
    let world = World::new().await;
    let mail = world.transactional_mail().await;
    for sql in [
        "update tenants set quiet_from = (now() at time zone 'utc' - interval '13 hours 30 minutes')::time,
             quiet_to = (now() at time zone 'utc' - interval '30 minutes')::time, quiet_by_contact = false,
             quiet_for = array['transactional']",
        "update sends set state = 'deferred', attempts = 1, next_attempt_at = now()",
        "update batches set queued = 0, deferred = 1, created_at = now() - interval '37 hours 30 minutes'",
    ] {
        sqlx::query(sql).execute(&world.rig.pool).await.unwrap();
    }
    assert_eq!(world.owed(&mail, "smtp").await.attempt, 2);
}

#[tokio::test]
async fn mail_in_doubt_counts_once_and_leaves_its_quota_to_no_other() {
    let world = World::new().await;
    world.limit(1).await;
    let (mail, other) = (world.transactional_mail().await, world.campaign_mail().await);
    world.record(Change::unknown(world.fenced(&mail, "smtp").await, "no_answer")).await;
    world.assert_used(1).await;
    assert_eq!(world.ledger.fence(world.owed(&other, "smtp").await).await, Fence::Refused);
    let repeated = world.fenced(&mail, "smtp").await;
    world.record(Change::sent(repeated, Answer::default()).by("smtp", None)).await;
    world.assert_used(1).await;
    world.rig.assert_books().await;
}

#[tokio::test]
async fn mail_that_was_released_has_had_no_provider() {
    let world = World::new().await;
    let mail = world.campaign_mail().await;
    let fenced = world.fenced(&mail, "ses").await;
    world.record(Change::released(fenced, Duration::ZERO).by("ses", None)).await;
    assert_eq!(world.rig.number("select count(*) from sends where state = 'queued' and provider is null").await, 1);
}

#[tokio::test]
async fn a_released_attempt_leaves_the_provider_of_the_one_before() {
    let world = World::new().await;
    let mail = world.campaign_mail().await;
    let fenced = world.fenced(&mail, "ses").await;
    world.record(Change::deferred(fenced, "temporary", Answer::default(), Duration::ZERO).by("ses", None)).await;
    let repeated = world.fenced(&mail, "smtp").await;
    world.record(Change::released(repeated, Duration::ZERO).by("smtp", None)).await;
    assert_eq!(world.rig.number("select count(*) from sends where state = 'queued' and provider = 'ses'").await, 1);
}

#[tokio::test]
async fn a_repeat_that_never_left_gives_back_no_quota() {
    let world = World::new().await;
    let mail = world.transactional_mail().await;
    world.record(Change::unknown(world.fenced(&mail, "smtp").await, "no_answer")).await;
    world.record(Change::released(world.fenced(&mail, "smtp").await, Duration::ZERO)).await;
    world.assert_used(1).await;
}

#[rstest]
#[case::before_its_attempt_was_in_doubt(0)]
#[case::before_its_repeat(1)]
#[case::after_a_repeat_that_was_deferred(2)]
#[tokio::test]
async fn mail_that_is_known_to_have_left_is_not_tried_again(#[case] known_after: i64) {
    let world = World::new().await;
    let mail = world.transactional_mail().await;
    let learn = async |step| {
        if step == known_after {
            world.report(&[world.delivered(&mail)], &[]).await;
        }
    };
    let fenced = world.fenced(&mail, "ses").await;
    learn(0).await;
    world.record(Change::unknown(fenced, "no_answer")).await;
    learn(1).await;
    if known_after > 1 {
        let repeated = world.fenced(&mail, "ses").await;
        world.record(Change::deferred(repeated, "temporary", Answer::default(), Duration::ZERO)).await;
        learn(2).await;
    }
    assert_eq!(world.ledger.fence(world.owed(&mail, "ses").await).await, Fence::Refused);
    let unknown = "select count(*) from sends where state = 'unknown' and reason = 'no_answer'";
    assert_eq!(world.rig.number(unknown).await, 1);
    assert_eq!(world.rig.number("select sum(attempts)::int8 from sends").await, known_after.max(1));
    assert_eq!(world.rig.number("select count(*) from batches where state = 'done' and unknown = 1").await, 1);
    world.assert_used(1).await;
    world.rig.assert_books().await;
}

#[tokio::test]
async fn mail_in_doubt_that_has_arrived_counts_once() {
    let world = World::new().await;
    let mail = world.transactional_mail().await;
    world.record(Change::unknown(world.fenced(&mail, "ses").await, "no_answer")).await;
    let (tenant_id, at, provider) = (world.tenant.id, Utc::now(), "ses".to_owned());
    let evidence = ProviderEvidence { tenant_id, send_id: mail.id, at, provider, message_id: None };
    assert_eq!(world.report(&[], &[evidence]).await.resolved, 1);
    world.assert_used(1).await;
    world.rig.assert_books().await;
}
