//! A database restored from a backup must not mail again what was mailed after the backup.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use pipeline::{Rig, eventually, files::text, process};
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(120);
const RECIPIENTS: usize = 2_000;
/// Of the campaign that is due after the backup.
const LATER: usize = 20;
/// The backup is begun within this time.
const DUE_IN: chrono::Duration = chrono::Duration::seconds(10);

fn run(rig: &Rig, args: &[&str]) -> Vec<Value> {
    process::lines(&process::run(&[&["--json"], args].concat(), &rig.operator_env()))
}

/// The program beside the server's own: a dump must not be of another version.
fn program(name: &str) -> PathBuf {
    let on_path =
        std::env::var_os("PATH").into_iter().flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let debian =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|dir| dir.path().join("bin"));
    let mut found: Vec<PathBuf> =
        debian.chain(on_path).map(|dir| dir.join(name)).filter(|path| path.is_file()).collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.starts_with("/usr/lib/postgresql")));
    found.into_iter().next().unwrap_or_else(|| panic!("{name} comes with Postgres' own package, which has the server"))
}

fn sh(program: &Path, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&output.stderr));
}

/// The server's own database, and the name of the rig's.
fn maintenance(url: &str) -> (String, String) {
    let (server, name) = url.rsplit_once('/').unwrap();
    let name = name.split('?').next().unwrap().to_owned();
    (format!("{server}/postgres"), name)
}

/// What the document's own `awk` takes out of a relay's log, as a file beside it.
fn lines_the_document_takes(log: &Path) -> PathBuf {
    let document = text("ops/backup-and-restore.md");
    let command = document.lines().find(|line| line.trim_start().starts_with("awk ")).unwrap();
    let mut quoted = command.split('\'').skip(1).step_by(2);
    let (separator, program) = (quoted.next().unwrap(), quoted.next().unwrap());
    let output = Command::new("awk").args(["-F", separator, program]).arg(log).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let taken = log.with_extension("taken");
    std::fs::write(&taken, output.stdout).unwrap();
    taken
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_ledger_is_held_until_the_gap_is_closed_and_then_nobody_is_mailed_twice() {
    // Announced again soon: within the duplicate window the bus drops what has the number of an announcement from before.
    let mut rig = Rig::shared()
        .await
        .with("SMTP_FINAL_TIMEOUT", "5s")
        .with("SMTP_COMMAND_TIMEOUT", "10s")
        .with("AUDIENCE_REANNOUNCE", "2s");
    let url = rig.env["POSTRIDER_DATABASE_URL"].clone();
    rig.start_all().await;
    let (list, addresses) = rig.list_of(RECIPIENTS, "restored", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello {{ first_name }}</p>").await;
    let (later_list, later_addresses) = rig.list_of(LATER, "later", "example.com").await;
    let later = rig.campaign(later_list, "Later", "<p>Hello {{ first_name }}</p>").await;
    // The relay takes its time until the backup is there.
    rig.sink.set_rules(json!([{"match": "all", "stage": "dot", "delay_ms": 1_000}])).await;
    rig.launch(campaign).await;
    rig.sink.wait(200, 60_000).await;
    let later_path = format!("/v1/campaigns/{later}");
    let due_at = (chrono::Utc::now() + DUE_IN).to_rfc3339();
    rig.client.post(&format!("{later_path}/launch"), json!({"schedule_for": due_at})).await.expect(202);
    // The backup is of a moment in the middle …
    let dump = rig.dir().join("backup.dump");
    sh(&program("pg_dump"), &["--format=custom", "--file", dump.to_str().unwrap(), &url]);
    let at_backup = rig.sink.accepted().await;
    assert!(at_backup < RECIPIENTS as u64, "the campaign was over before the backup");
    // … and most was mailed after it.
    rig.sink.set_rules(json!([])).await;
    rig.sink.wait(RECIPIENTS as u64 - 100, 60_000).await;
    eventually("the scheduled campaign to go out", PATIENCE, || async {
        (rig.sink.counts(&later_addresses).await == [1; LATER]).then_some(())
    })
    .await;
    rig.processes.remove("all").unwrap().terminate().await;
    let mailed = rig.sink.accepted().await;
    // The relay's log, as Postfix writes it: our Message-ID when it reads a mail's header, then that the mail is in the queue, and what
    // became of it.
    let sent: Vec<Uuid> =
        sqlx::query_scalar("select id from sends where state = 'sent'").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(sent.len() as u64, mailed);
    let lines = |(number, id): (usize, &Uuid)| {
        let mail = format!("{:06X}", number + 0xA0_0000);
        format!("relay postfix/cleanup[71]: {mail}: message-id=<{id}.0a1b2c3d4e5f6071@acme.example>\n")
            + &format!("relay postfix/qmgr[70]: {mail}: from=<b@send.acme.example>, size=900, nrcpt=1 (queue active)\n")
            + &format!("relay postfix/smtp[72]: {mail}: to=<a@example.com>, dsn=2.0.0, status=sent (250 2.0.0 Ok)\n")
    };
    let refused = format!(
        "relay postfix/cleanup[71]: 9F0000: message-id=<{}.0a1b2c3d4e5f6071@acme.example>\n\
         relay postfix/cleanup[71]: 9F0000: milter-reject: END-OF-MESSAGE from engine[192.0.2.1]: 4.7.1 Try again later\n",
        Uuid::now_v7()
    );
    let log: String = std::iter::once(refused).chain(sent.iter().enumerate().map(lines)).collect();
    std::fs::write(rig.dir().join("relay.log"), log).unwrap();

    // The disaster.
    let (server, name) = maintenance(&url);
    rig.pool.close().await;
    let mut db = PgConnection::connect(&server).await.unwrap();
    db.execute(sqlx::AssertSqlSafe(format!("drop database \"{name}\" with (force)"))).await.unwrap();
    db.execute(sqlx::AssertSqlSafe(format!("create database \"{name}\""))).await.unwrap();
    sh(&program("pg_restore"), &["--no-owner", "--dbname", &url, dump.to_str().unwrap()]);
    rig.pool = sqlx::PgPool::connect(&url).await.unwrap();
    // Else the bus drops the announcement of the launch, which has the number of the one in the gap.
    sqlx::query("update requests set announcements = 1 where state = 'accepted'").execute(&rig.pool).await.unwrap();

    rig.start_all().await;
    let status = eventually("the ledger to be held", PATIENCE, || async {
        run(&rig, &["restore", "status"]).into_iter().find(|status| status["held"] == json!(true))
    })
    .await;
    assert_eq!(status["held_by"], "engine", "{status}");
    let (not_begun, running) = (&status["campaigns"][0], &status["campaigns"][1]);
    assert_eq!((&not_begun["campaign"], &not_begun["begun"]), (&json!(later), &json!(false)), "{status}");
    assert!(running["open"].as_i64().unwrap() > 0, "{status}");
    // Everything before the last gate works on; a full turn of it, and nothing leaves.
    eventually("work to stand before delivery", PATIENCE, || async {
        let streams = run(&rig, &["streams", "report"]);
        let readers = streams.iter().flat_map(|stream| stream["consumers"].as_array().unwrap().clone());
        let mut waiting = readers.filter(|reader| reader["consumer"] == "delivery-bulk");
        waiting.find(|reader| reader["pending"].as_u64() > Some(0))
    })
    .await;
    assert_eq!(rig.sink.accepted().await, mailed);
    let health = &lines_of_failing(&rig, &["health"])[0];
    assert_eq!(health["overall"], "crit", "{health}");

    let shown = lines_the_document_takes(&rig.dir().join("relay.log"));
    let reconciled = &run(&rig, &["restore", "reconcile", "--sent", shown.to_str().unwrap()])[0];
    assert_eq!(reconciled["read"].as_u64(), Some(mailed), "{reconciled}");
    assert!(reconciled["marked"].as_u64() > Some(0), "{reconciled}");
    rig.books_balance().await;
    eventually("the launch to be due and left", PATIENCE, || async {
        let launch = "select announce_after > due_at and announcements = 0 from requests
                      where state = 'accepted' and kind = 'campaign-launch'";
        sqlx::query_scalar(launch).fetch_optional(&rig.pool).await.unwrap().filter(|left: &bool| *left)
    })
    .await;
    let batches: i64 = sqlx::query_scalar("select count(*) from batches where campaign_id = $1")
        .bind(later)
        .fetch_one(&rig.pool)
        .await
        .unwrap();
    assert_eq!(batches, 0);
    // The log has its mail under ids that are gone.
    run(&rig, &["pause", "campaign", &later.to_string(), "--reason", "mailed in the gap"]);
    rig.client.patch(&later_path, json!({"status": "cancelled"})).await.expect(200);
    run(&rig, &["restore", "release", "--reason", "the relay's log was read in"]);
    rig.status(campaign, "sent", PATIENCE).await;
    rig.status(later, "cancelled", PATIENCE).await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; RECIPIENTS]);
    assert_eq!(rig.sink.counts(&later_addresses).await, vec![1; LATER]);
    rig.books_balance().await;
    // Another start finds nothing wrong with it.
    rig.processes.remove("all").unwrap().terminate().await;
    rig.start_all().await;
    eventually("a process to be heard of", PATIENCE, || async {
        let running: i64 =
            sqlx::query_scalar("select count(*) from heartbeats where stage = 'delivery' and not paused")
                .fetch_one(&rig.pool)
                .await
                .ok()?;
        (running > 0).then_some(())
    })
    .await;
    assert_eq!(run(&rig, &["restore", "status"])[0]["held"], json!(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_log_is_read_in_while_a_launch_is_half_written() {
    let mut rig = Rig::shared().await;
    rig.start("ingress", &["ingress"]).await;
    let (list, _) = rig.list_of(1, "half", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello</p>").await;
    let half_written = "update campaigns
                        set status = 'sending', launched_at = now(), launch_prefix = left(replace(id::text, '-', ''), 23)";
    sqlx::query(half_written).execute(&rig.pool).await.unwrap();
    let log = rig.dir().join("relay.log");
    std::fs::write(&log, Uuid::now_v7().to_string()).unwrap();
    let reconcile = ["restore", "reconcile", "--sent", log.to_str().unwrap()];
    run(&rig, &["restore", "begin"]);
    lines_of_failing(&rig, &reconcile);
    let status = &run(&rig, &["restore", "status"])[0]["campaigns"][0];
    assert_eq!((&status["campaign"], &status["written"]), (&json!(campaign), &json!(false)), "{status}");
    sqlx::query("update campaigns set materialized_at = now()").execute(&rig.pool).await.unwrap();
    assert_eq!(run(&rig, &reconcile)[0]["read"], json!(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_log_is_read_in_while_mail_that_it_shows_is_not_written() {
    let mut rig = Rig::shared().await;
    rig.start("ingress", &["ingress"]).await;
    let due = (chrono::Utc::now() + chrono::TimeDelta::hours(1)).to_rfc3339();
    let body = json!({
        "sender_id": rig.sender_id, "to": [{"email": "cid@example.com"}, {"email": "dan@example.com"}], "subject": "Hello",
        "html": "<p>Hello</p>", "message_class": "business", "scheduled_at": due,
    });
    let message = rig.client.post("/v1/messages", body).await.expect(202);
    let log = rig.dir().join("relay.log");
    std::fs::write(&log, message["recipients"][1]["send_id"].as_str().unwrap()).unwrap();
    let reconcile = ["restore", "reconcile", "--reason", "the log of the gap", "--sent", log.to_str().unwrap()];
    run(&rig, &["restore", "begin"]);
    let shown = &run(&rig, &[&reconcile[..], &["--dry-run"]].concat())[0];
    assert_eq!((&shown["elsewhere"], &shown["marked"]), (&json!(1), &json!(0)), "{shown}");
    lines_of_failing(&rig, &reconcile);
    assert_eq!(rig.number("select count(*) from audit_log where action = 'restore.reconcile'").await, 0);

    sqlx::query("update requests set due_at = now(), announce_after = now()").execute(&rig.pool).await.unwrap();
    rig.start("audience", &["stage", "audience"]).await;
    eventually("the sends to be written", PATIENCE, || async {
        (rig.number("select count(*) from sends").await == 2).then_some(())
    })
    .await;
    // One that fails half-way has left its entry.
    let refuse = "create function refuse_send() returns trigger language plpgsql
                  as $$ begin raise exception 'refused'; end $$;
                  create trigger refuse_send before update on sends for each row execute function refuse_send()";
    sqlx::raw_sql(refuse).execute(&rig.pool).await.unwrap();
    lines_of_failing(&rig, &reconcile);
    let entry = "select actor, reason from audit_log where action = 'restore.reconcile'";
    let (actor, reason): (String, String) = sqlx::query_as(entry).fetch_one(&rig.pool).await.unwrap();
    assert_eq!((actor.starts_with("cli:"), reason.as_str()), (true, "the log of the gap"));
    sqlx::raw_sql("drop trigger refuse_send on sends").execute(&rig.pool).await.unwrap();
    assert_eq!(run(&rig, &reconcile)[0]["marked"], json!(1));
}

/// The lines of a command that ends with 1 and means it.
fn lines_of_failing(rig: &Rig, args: &[&str]) -> Vec<Value> {
    let output = Command::new(process::binary()).arg("--json").args(args).envs(&rig.operator_env()).output().unwrap();
    assert!(!output.status.success());
    process::lines(&String::from_utf8(output.stdout).unwrap())
}
