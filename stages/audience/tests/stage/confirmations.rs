//! Contacts are asked to confirm their consent: nobody too often, nobody who may not be asked, and each by one mail.

use ledger::confirmations::{self, ConfirmationSettings, SendConfirmations};
use rstest::rstest;
use runner::{PauseGate, Sweep};
use runtime::{MasterKeys, PauseSwitches};
use schemas::{
    RequestKind,
    messages::{MailOptions, TransactionalPayload},
};
use serde_json::Value;
use sqlx::types::Json;
use stage_rig::{Person, Rig, Tenant, until};
use uuid::Uuid;

use crate::{pause_ledger, release_ledger, run, start};

/// A tenant that may send, and people whose consent is pending.
async fn pending(rig: &Rig, count: usize) -> (Tenant, Vec<Person>) {
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, count).await;
    run(rig, "update senders set is_default = true").await;
    run(rig, "update contacts set marketing_status = 'pending'").await;
    (tenant, people)
}

async fn ask(rig: &Rig, tenant: &Tenant, people: &[Person]) -> usize {
    ask_as(rig, tenant, people, false).await
}

async fn ask_as(rig: &Rig, tenant: &Tenant, people: &[Person], is_bulk: bool) -> usize {
    let ids: Vec<Uuid> = people.iter().map(|person| person.id).collect();
    let mut db = rig.pool.acquire().await.unwrap();
    let (settings, keys) = (ConfirmationSettings::default(), MasterKeys::parse(&"07".repeat(32)).unwrap());
    confirmations::request(&mut db, tenant.id, &ids, is_bulk, &settings, &keys).await.unwrap().len()
}

fn sweep_of(rig: &Rig, settings: ConfirmationSettings) -> SendConfirmations {
    SendConfirmations::new(rig.process().pool, PauseGate::new(PauseSwitches::released()), settings)
}

async fn sweep(rig: &Rig) -> u64 {
    sweep_of(rig, ConfirmationSettings::default()).sweep().await.unwrap()
}

async fn mails(rig: &Rig) -> i64 {
    rig.number("select count(*) from requests where kind = 'transactional'").await
}

async fn state(rig: &Rig) -> (String, i32) {
    sqlx::query_as("select state, mails from confirmations").fetch_one(&rig.pool).await.unwrap()
}

/// What was done is this long ago.
async fn pass(rig: &Rig, time: &str) {
    run(
        rig,
        &format!(
            "update confirmations set requested_at = requested_at - interval '{time}', due_at = due_at - interval '{time}',
                 last_mail_at = last_mail_at - interval '{time}', expires_at = expires_at - interval '{time}'"
        ),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sign_ups_of_one_address_are_one_mail() {
    let rig = Rig::new().await;
    let (tenant, people) = pending(&rig, 1).await;
    let mut asked = 0;
    for _ in 0..10 {
        for _ in 0..100 {
            asked += ask(&rig, &tenant, &people).await;
        }
        sweep(&rig).await;
    }
    assert_eq!((asked, mails(&rig).await), (1, 1));
    pass(&rig, "13 hours").await;
    assert_eq!((ask(&rig, &tenant, &people).await, sweep(&rig).await, mails(&rig).await), (1, 1, 2));
    for _ in 0..9 {
        pass(&rig, "100 days").await;
        ask(&rig, &tenant, &people).await;
        while sweep(&rig).await > 0 {}
    }
    assert_eq!((mails(&rig).await, state(&rig).await), (5, ("expired".to_owned(), 5)), "and five in all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_up_after_its_confirmation_expired_needs_no_sweep_before() {
    let rig = Rig::new().await;
    let (tenant, people) = pending(&rig, 1).await;
    ask(&rig, &tenant, &people).await;
    sweep(&rig).await;
    pass(&rig, "100 days").await;
    assert_eq!((ask(&rig, &tenant, &people).await, sweep(&rig).await, mails(&rig).await), (1, 1, 2));
    assert_eq!(state(&rig).await, ("pending".to_owned(), 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn sweeps_of_three_processes_mail_each_contact_once() {
    const PEOPLE: i64 = 900;
    let rig = Rig::new().await;
    let (tenant, people) = pending(&rig, usize::try_from(PEOPLE).unwrap()).await;
    assert_eq!(ask(&rig, &tenant, &people).await, people.len());
    let processes = (0..3).map(|_| {
        let sweep = sweep_of(&rig, ConfirmationSettings::default());
        let pool = rig.pool.clone();
        tokio::spawn(async move {
            let due = "select count(*) from confirmations where due_at <= now()";
            while sqlx::query_scalar::<_, i64>(due).fetch_one(&pool).await.unwrap() > 0 {
                sweep.sweep().await.unwrap();
            }
        })
    });
    for process in processes.collect::<Vec<_>>() {
        process.await.unwrap();
    }
    assert_eq!(mails(&rig).await, PEOPLE);
    let once = "select count(distinct payload ->> 'address') from requests";
    assert_eq!(rig.number(once).await, PEOPLE);
    assert_eq!(rig.number("select count(*) from confirmations where mails = 1 and send_id is not null").await, PEOPLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_that_fails_between_mail_and_mark_leaves_neither() {
    let rig = Rig::new().await;
    let (tenant, people) = pending(&rig, 1).await;
    ask(&rig, &tenant, &people).await;
    let owner = sqlx::PgPool::connect(&rig.database.url()).await.unwrap();
    let break_marks = "create function break_marks() returns trigger language plpgsql as
                           $$ begin raise exception 'the process dies here'; end $$;
                       create trigger break_marks before update on confirmations for each row execute function break_marks()";
    sqlx::raw_sql(break_marks).execute(&owner).await.unwrap();
    assert!(sweep_of(&rig, ConfirmationSettings::default()).sweep().await.is_err());
    assert_eq!((mails(&rig).await, state(&rig).await), (0, ("pending".to_owned(), 0)));
    sqlx::raw_sql("drop trigger break_marks on confirmations").execute(&owner).await.unwrap();
    sweep(&rig).await;
    sweep(&rig).await;
    assert_eq!((mails(&rig).await, state(&rig).await), (1, ("pending".to_owned(), 1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_asks_no_more_people_than_its_hour_allows() {
    let rig = Rig::new().await;
    let settings = ConfirmationSettings { confirmation_rate_per_hour: 3, ..ConfirmationSettings::default() };
    let (crowd, crowded) = pending(&rig, 10).await;
    let (quiet, few) = pending(&rig, 2).await;
    ask(&rig, &crowd, &crowded).await;
    ask(&rig, &quiet, &few).await;
    let all = sweep_of(&rig, settings);
    while all.sweep().await.unwrap() > 0 {}
    let of = "select array_agg(n order by n) from (select count(*) as n from requests group by tenant_id) t";
    let counts: Vec<i64> = sqlx::query_scalar(of).fetch_one(&rig.pool).await.unwrap();
    assert_eq!(counts, [2, 3], "one tenant's crowd does not delay another's");
    run(&rig, "update confirmations set last_mail_at = last_mail_at - interval '61 minutes'").await;
    while all.sweep().await.unwrap() > 0 {}
    assert_eq!(mails(&rig).await, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_up_is_mailed_before_what_an_import_asked_for() {
    let rig = Rig::new().await;
    let settings = ConfirmationSettings { confirmation_rate_per_hour: 2, ..ConfirmationSettings::default() };
    let (tenant, people) = pending(&rig, 8).await;
    ask_as(&rig, &tenant, &people[..6], true).await;
    pass(&rig, "1 hour").await;
    // The last of the import signs up, too.
    assert_eq!(ask(&rig, &tenant, &people[5..7]).await, 2);
    assert_eq!(ask_as(&rig, &tenant, &people[5..7], true).await, 0);
    let all = sweep_of(&rig, settings);
    while all.sweep().await.unwrap() > 0 {}
    let mailed: Vec<Uuid> =
        sqlx::query_scalar("select contact_id from confirmations where mails = 1 order by contact_id")
            .fetch_all(&rig.pool)
            .await
            .unwrap();
    let mut expected = [people[5].id, people[6].id];
    expected.sort_unstable();
    assert_eq!(mailed, expected);
    run(&rig, "update confirmations set last_mail_at = last_mail_at - interval '61 minutes'").await;
    while all.sweep().await.unwrap() > 0 {}
    assert_eq!(mails(&rig).await, 3, "the import is mailed when nobody else waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_leaves_sign_ups_a_part_of_the_hour() {
    let rig = Rig::new().await;
    let settings = ConfirmationSettings { confirmation_rate_per_hour: 10, ..ConfirmationSettings::default() };
    let (tenant, people) = pending(&rig, 21).await;
    let all = sweep_of(&rig, settings);
    ask_as(&rig, &tenant, &people[..20], true).await;
    while all.sweep().await.unwrap() > 0 {}
    assert_eq!(mails(&rig).await, 8);
    ask(&rig, &tenant, &people[20..]).await;
    all.sweep().await.unwrap();
    assert_eq!(rig.number("select count(*) from confirmations where mails = 1 and not is_bulk").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_ups_of_every_tenant_come_before_imports() {
    let rig = Rig::new().await;
    // More than one sweep takes.
    let (importing, crowd) = pending(&rig, 501).await;
    let (small, few) = pending(&rig, 1).await;
    ask_as(&rig, &importing, &crowd, true).await;
    ask(&rig, &small, &few).await;
    assert_eq!(sweep(&rig).await, 500);
    assert_eq!(rig.number("select count(*) from confirmations where mails = 1 and not is_bulk").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reminder_is_sent_once_and_then_the_link_expires() {
    let rig = Rig::new().await;
    let (tenant, people) = pending(&rig, 1).await;
    run(&rig, "update tenants set org_name = 'Acme', confirmation_reminder_hours = 48, confirmation_days = 5").await;
    ask(&rig, &tenant, &people).await;
    let mut reminders = Vec::new();
    for hours in ["0 hours", "47 hours", "2 hours", "60 hours", "12 hours"] {
        pass(&rig, hours).await;
        sweep(&rig).await;
        reminders.push((mails(&rig).await, state(&rig).await.0));
    }
    let expected = [(1, "pending"), (1, "pending"), (2, "pending"), (2, "pending"), (2, "expired")];
    assert_eq!(reminders, expected.map(|(mails, state)| (mails, state.to_owned())));
    let (payloads, options): (Vec<Json<TransactionalPayload>>, Vec<Json<MailOptions>>) = sqlx::query_as(
        "select array_agg(payload order by id), array_agg(options order by id) from requests where kind = $1",
    )
    .bind(RequestKind::Transactional.as_str())
    .fetch_one(&rig.pool)
    .await
    .unwrap();
    let told: Vec<&Value> = payloads.iter().map(|payload| &payload.data["is_reminder"]).collect();
    assert_eq!(told, [false, true]);
    assert!(payloads.iter().all(|payload| payload.data["organisation"] == "Acme"));
    assert!(options.iter().all(|mail| mail.asks_to_confirm && mail.no_click_tracking && mail.no_open_tracking));
}

#[rstest]
#[case::by_statement("update contacts set marketing_status = 'subscribed'", "withdrawn")]
#[case::left("update contacts set marketing_status = 'unsubscribed'", "withdrawn")]
#[case::archived("update contacts set status = 'archived'", "withdrawn")]
#[case::suppressed(
    "insert into suppressions (tenant_id, id, address, reason, scope, source)
     select tenant_id, id, address, 'hard_bounce', 'all', 'delivery' from contacts",
    "withdrawn"
)]
#[case::nobody_to_write("update senders set is_default = false", "pending")]
#[case::domain_lost("update domains set status = 'failed'", "pending")]
#[case::tenant_paused("update tenants set paused_at = now()", "pending")]
#[case::tenant_suspended("update tenants set status = 'suspended'", "pending")]
#[tokio::test(flavor = "multi_thread")]
async fn a_contact_that_may_not_be_asked_gets_no_mail(#[case] change: &str, #[case] expected: &str) {
    let rig = Rig::new().await;
    let (tenant, people) = pending(&rig, 1).await;
    ask(&rig, &tenant, &people).await;
    run(&rig, change).await;
    sweep(&rig).await;
    assert_eq!((mails(&rig).await, state(&rig).await), (0, (expected.to_owned(), 0)));
    if expected == "withdrawn" {
        assert_eq!(ask(&rig, &tenant, &people).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_ends_as_it_was_shown_before_the_sweep() {
    let rig = Rig::new().await;
    let (tenant, people) = pending(&rig, 1).await;
    ask(&rig, &tenant, &people).await;
    sweep(&rig).await;
    pass(&rig, "100 days").await;
    run(&rig, "update contacts set marketing_status = 'unsubscribed'").await;
    let shown: String = sqlx::query_scalar(
        "select confirmation_state(f.state, f.expires_at, c.marketing_status)
         from confirmations f join contacts c on c.id = f.contact_id",
    )
    .fetch_one(&rig.pool)
    .await
    .unwrap();
    sweep(&rig).await;
    let ended = state(&rig).await.0;
    assert_eq!((shown.as_str(), ended.as_str()), ("withdrawn", "withdrawn"));
}

#[rstest]
#[case::german(Some("de-AT"), "Bitte bestätigen")]
#[case::french(Some("FR"), "Veuillez confirmer")]
#[case::spanish(Some("es_MX"), "Confirme su")]
#[case::none_of_ours(Some("pt-BR"), "Please confirm")]
#[case::unknown(None, "Please confirm")]
#[tokio::test(flavor = "multi_thread")]
async fn the_mail_is_in_the_contacts_language(#[case] locale: Option<&str>, #[case] subject: &str) {
    let rig = Rig::new().await;
    let (tenant, people) = pending(&rig, 1).await;
    sqlx::query("update contacts set locale = $1").bind(locale).execute(&rig.pool).await.unwrap();
    ask(&rig, &tenant, &people).await;
    sweep(&rig).await;
    let found: String = sqlx::query_scalar(
        "select c.subject from requests r join contents c on c.tenant_id = r.tenant_id and c.id = (r.payload ->> 'content_id')::uuid",
    )
    .fetch_one(&rig.pool)
    .await
    .unwrap();
    assert!(found.contains(subject), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tenants_template_is_the_mail_while_it_has_the_link() {
    let rig = Rig::new().await;
    let (tenant, people) = pending(&rig, 3).await;
    let template = schemas::new_id();
    sqlx::query(
        "with template as (
             insert into templates (tenant_id, id, name, template_type, status, version, content_id)
             values ($1, $2, 'Confirm', 'transactional', 'active', 1, $3)
         )
         update tenants set confirmation_template_id = $2 where id = $1",
    )
    .bind(tenant.id)
    .bind(template)
    .bind(tenant.content)
    .execute(&rig.pool)
    .await
    .unwrap();
    let mut of_template = Vec::new();
    for (person, variables) in people.iter().zip(["{data.confirmation_url}", "{first_name}", "{data.confirmation_url}"])
    {
        run(
            &rig,
            &format!(
                "update contents set kind = 'transactional', variables = '{variables}' where body_html = '<p>Hi</p>'"
            ),
        )
        .await;
        ask(&rig, &tenant, std::slice::from_ref(person)).await;
        sweep(&rig).await;
        let own = "select count(*) from requests where payload ->> 'content_id' = payload ->> 'template_id'";
        of_template.push((mails(&rig).await, rig.number(own).await));
    }
    assert_eq!(of_template, [(1, 0), (2, 1), (3, 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_mail_passes_the_gate_as_any_other() {
    let rig = Rig::new().await;
    let (tenant, people) = pending(&rig, 1).await;
    ask(&rig, &tenant, &people).await;
    start(&rig, &[]).await;
    let sent = "select count(*) from sends s join batches b on b.tenant_id = s.tenant_id and b.classification = 'transactional'
                join confirmations f on f.tenant_id = s.tenant_id and f.send_id = s.id and f.contact_id = s.contact_id";
    until("the send to be in the ledger", async || rig.number(sent).await == 1).await;
    assert_eq!(rig.number("select count(*) from contacts where marketing_status = 'pending'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_asked_while_the_ledger_is_held() {
    let rig = Rig::new().await;
    let (tenant, people) = pending(&rig, 1).await;
    ask(&rig, &tenant, &people).await;
    let switches = pause_ledger(&rig).await;
    let gate = PauseGate::new(switches.clone());
    let sweep = SendConfirmations::new(rig.process().pool, gate, ConfirmationSettings::default());
    assert_eq!((sweep.sweep().await.unwrap(), mails(&rig).await), (0, 0));
    release_ledger(&rig, &switches).await;
    assert_eq!((sweep.sweep().await.unwrap(), mails(&rig).await), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn mails_before_an_erasure_count_when_the_master_key_was_rotated() {
    let rig = Rig::new().await;
    let (tenant, people) = pending(&rig, 2).await;
    let [old, new] = ["aa".repeat(32), "bb".repeat(32)];
    let erased = MasterKeys::parse(&old).unwrap().erased_address(tenant.id, &people[1].address);
    for sql in [
        "update contacts set status = 'erased', address = $2 where id = $1",
        "insert into confirmations (tenant_id, contact_id, state, mails)
         select tenant_id, id, 'withdrawn', 5 from contacts where id = $1 and address = $2",
    ] {
        sqlx::query(sql).bind(people[0].id).bind(&erased).execute(&rig.pool).await.unwrap();
    }
    let (settings, keys) = (ConfirmationSettings::default(), MasterKeys::parse(&format!("{new},{old}")).unwrap());
    let mut db = rig.pool.acquire().await.unwrap();
    let asked = confirmations::request(&mut db, tenant.id, &[people[1].id], false, &settings, &keys).await.unwrap();
    assert!(asked.is_empty(), "the address was asked five times");
    let mails: i32 = sqlx::query_scalar("select mails from confirmations where contact_id = $1")
        .bind(people[1].id)
        .fetch_one(&rig.pool)
        .await
        .unwrap();
    assert_eq!(mails, 5);
}
