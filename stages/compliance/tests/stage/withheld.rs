//! Recipients that must not be mailed are skipped, with their reason.

use rstest::rstest;
use schemas::Classification;
use stage_rig::Rig;

use crate::{campaign, cleared, decide, queued, sends, skipped, state_of, ten_people};

#[rstest]
#[case::marketing(Classification::Marketing, 1)]
#[case::operational(Classification::Operational, 5)]
#[tokio::test(flavor = "multi_thread")]
async fn a_withheld_recipient_has_its_reason_in_the_ledger(#[case] class: Classification, #[case] mailed: usize) {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = ten_people(&rig, &tenant).await;
    let batch = rig.batch(&tenant, campaign, class, &people).await;
    decide(&rig, &[&batch]).await;
    let soft = |reason: &str| if class == Classification::Marketing { skipped(reason) } else { queued() };
    let expected = [
        queued(),
        skipped("hard_bounced"),
        skipped("complained"),
        skipped("invalid_address"),
        skipped("suppressed"),
        soft("suppressed"),
        soft("unsubscribed"),
        soft("unsubscribed"),
        soft("no_consent"),
        skipped("contact_archived"),
    ];
    assert_eq!(sends(&rig, batch.batch_id).await, expected);
    let cleared = cleared(&rig).await;
    assert_eq!(cleared.len(), 1);
    assert_eq!((cleared[0].batch_id, cleared[0].announcement, cleared[0].classification), (batch.batch_id, 1, class));
    assert_eq!(cleared[0].recipients.len(), mailed);
    assert_eq!((cleared[0].recipients[0].ordinal, cleared[0].recipients[0].contact_id), (0, people[0].id));
    rig.assert_books().await;
    let counted =
        rig.number("select sum(count)::bigint from rollups where kind = 'campaign' and event = 'skipped'").await;
    assert_eq!(counted, i64::try_from(10 - mailed).unwrap());
    // Each is a fact as well, which becomes an event.
    let facts = rig
        .number(
            "select count(*) from events e join sends s on s.tenant_id = e.tenant_id and s.id = e.send_id
             where e.type = 'skipped' and e.detail ->> 'reason' = s.reason",
        )
        .await;
    assert_eq!(facts, counted);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_suppression_withholds_no_one() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 1).await;
    rig.suppress(&tenant, &people[0], "manual", "all").await;
    sqlx::query("update suppressions set expires_at = now() - interval '1 second'").execute(&rig.pool).await.unwrap();
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    decide(&rig, &[&batch]).await;
    assert_eq!(sends(&rig, batch.batch_id).await, [queued()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_which_all_are_withheld_is_done_and_goes_no_further() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 3).await;
    for person in &people {
        rig.suppress(&tenant, person, "complaint", "all").await;
    }
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    decide(&rig, &[&batch]).await;
    assert_eq!(state_of(&rig, batch.batch_id).await, "done");
    assert!(cleared(&rig).await.is_empty());
    rig.assert_books().await;
}

#[rstest]
#[case::tenant_suspended("update tenants set status = 'suspended'", "tenant_suspended")]
#[case::sender_disabled("update senders set status = 'disabled'", "sender_disabled")]
#[case::domain_failed("update domains set status = 'failed'", "domain_unverified")]
#[case::domain_suspended("update domains set status = 'suspended'", "domain_unverified")]
#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_may_not_send_has_all_recipients_withheld(#[case] change: &'static str, #[case] reason: &str) {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 2).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    sqlx::query(change).execute(&rig.pool).await.unwrap();
    decide(&rig, &[&batch]).await;
    assert_eq!(sends(&rig, batch.batch_id).await, [skipped(reason), skipped(reason)]);
    assert_eq!(state_of(&rig, batch.batch_id).await, "done");
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_degraded_domain_still_sends() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 1).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    sqlx::query("update domains set status = 'degraded'").execute(&rig.pool).await.unwrap();
    decide(&rig, &[&batch]).await;
    assert_eq!(cleared(&rig).await.len(), 1);
}

/// The topic is the list that the campaign goes to, also once people cannot see it any more.
#[rstest]
#[case::marketing(Classification::Marketing, "list", Some("News"), true)]
#[case::operational(Classification::Operational, "list", Some("News"), false)]
#[case::left_over_of_another_mode(Classification::Marketing, "segment", Some("News"), false)]
#[case::no_topic_any_more(Classification::Marketing, "list", None, true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_contact_that_left_the_topic_since_the_launch_is_not_mailed(
    #[case] class: Classification,
    #[case] mode: &str,
    #[case] public_name: Option<&str>,
    #[case] withheld: bool,
) {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    sqlx::query(
        "with topic as (
             update audiences a set public_name = $3::text, was_topic = $3::text is null
             from campaigns c where c.id = $1 and a.tenant_id = c.tenant_id and a.id = c.list_id
         )
         update campaigns set audience_mode = $2 where id = $1",
    )
    .bind(campaign)
    .bind(mode)
    .bind(public_name)
    .execute(&rig.pool)
    .await
    .unwrap();
    let people = rig.people(&tenant, 2).await;
    let batch = rig.batch(&tenant, campaign, class, &people).await;
    sqlx::query(
        "insert into topic_opt_outs (tenant_id, audience_id, contact_id, send_id)
         select tenant_id, list_id, $2, $3 from campaigns where id = $1",
    )
    .bind(campaign)
    .bind(people[0].id)
    .bind(batch.batch_id)
    .execute(&rig.pool)
    .await
    .unwrap();
    decide(&rig, &[&batch]).await;
    let first = if withheld { skipped("unsubscribed") } else { queued() };
    assert_eq!(sends(&rig, batch.batch_id).await, [first, queued()]);
    rig.assert_books().await;
}
