//! What comes after the send, while the processes that do it are killed again and again: every fact is told under one id, every
//! step of a sequence is taken once, every answer of a recipient is known, and the books balance.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use futures::future::join_all;
use pipeline::{Rig, eventually, rig::BROWSER};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};
use uuid::Uuid;

use crate::{recount::recount, webhooks::receiver::Receiver};

/// What works after the send.
const AFTER: [&str; 4] = ["engagement", "webhooks", "sequencing", "attribution"];
/// Each of them is killed so often.
const TIMES: usize = 2;
/// Each kill falls between two waves of so many people.
const WAVE: usize = 8;
const PEOPLE: usize = AFTER.len() * TIMES * 2 * WAVE;
const WITHIN: Duration = Duration::from_secs(90);

/// What everybody does: reads the campaign's mail, buys, is enrolled; the first of a wave answers.
struct Life {
    rig: Rig,
    receiver: Receiver,
    /// Where answers go.
    postbox: SocketAddr,
    people: Vec<String>,
    sequence: String,
    tag: String,
}

/// What a person did, to be found again in what products are told.
#[derive(Default)]
struct Done {
    outcomes: BTreeSet<String>,
    enrollments: BTreeSet<String>,
    answered: usize,
}

impl Life {
    async fn start() -> Self {
        let postbox = SocketAddr::from(([127, 0, 0, 1], devtools::servers::free_port()));
        let mut rig = Rig::shared()
            .await
            .with("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8")
            .with("AUDIENCE_REANNOUNCE", "5s")
            .with("INBOUND_ADDR", &postbox.to_string());
        rig.start_separate().await;
        let receiver = Receiver::start().await;
        let events = [
            "email.sent",
            "email.opened",
            "email.clicked",
            "email.replied",
            "contact.created",
            "sequence.completed",
            "task.created",
            "outcome.credited",
        ];
        rig.client.post("/v1/webhooks", json!({"url": receiver.url(), "events": events})).await.expect(201);
        let tag = rig.made("/v1/audiences", json!({"kind": "tag", "name": "walked"}), "audience_id").await;
        let sequence = sequence(&rig, &tag).await;
        let html = "<p>Hello {{ first_name }}, <a href=\"https://shop.example/offer\">the offer</a></p>";
        let (list, people) = rig.list_of(PEOPLE, "life", "example.com").await;
        let campaign = rig.campaign(list, "News", html).await;
        rig.launch(campaign).await;
        rig.status(campaign, "sent", WITHIN).await;
        Self { rig, receiver, postbox, people, sequence, tag }
    }

    /// One wave of people live their lives; what is answered here is committed, and worked on by nobody yet.
    async fn wave(&self, number: usize, done: &mut Done) {
        let people = &self.people[number * WAVE..(number + 1) * WAVE];
        for (outcome, enrollment) in join_all(people.iter().map(|address| self.live(address))).await {
            done.outcomes.insert(outcome);
            done.enrollments.insert(enrollment);
        }
    }

    async fn live(&self, address: &str) -> (String, String) {
        let mail = &self.rig.sink.messages_to(address).await[0];
        let html = mail["html"].as_str().unwrap();
        for link in [link(html, "/t/o/"), link(html, "/t/c/")] {
            let answer = self.rig.client.http().get(link).header("user-agent", BROWSER).send().await.unwrap();
            assert!(matches!(answer.status().as_u16(), 200 | 302), "{}", answer.status());
        }
        let body = json!({"contact_email": address, "outcome_type": "premium", "premium_amount": 10,
                          "source_event_id": format!("sale to {address}")});
        let outcome = self.rig.client.post("/v1/outcomes", body).await.expect(200)["outcome_id"].clone();
        let body = json!({"sequence_id": self.sequence, "email": format!("walker-of-{address}")});
        let enrollment = self.rig.made("/v1/enrollments", body, "enrollment_id").await;
        (outcome.as_str().unwrap().to_owned(), enrollment)
    }

    /// The first of a wave answers the mail: its answer is taken with a 250, whatever becomes of the process then.
    async fn answer(&self, number: usize, done: &mut Done) {
        let address = &self.people[number * WAVE];
        let mail = &self.rig.sink.messages_to(address).await[0];
        let letter = format!(
            "From: <{address}>\r\nTo: <news@acme.example>\r\nSubject: Re: News\r\nMessage-ID: <{number}@example.com>\r\n\r\nTell me more.\r\n"
        );
        let reply = deliver_inbound(self.postbox, address, mail["from"].as_str().unwrap(), &letter).await;
        assert!(reply.starts_with("250"), "{reply}");
        done.answered += 1;
    }

    /// Every fact was told, under one id however often: `email.sent` and the like by send, the others by what they are about.
    async fn everything_is_told(&self, done: &Done) {
        let wanted: BTreeMap<&str, (&str, usize)> = BTreeMap::from([
            // The campaign's and the sequence's.
            ("email.sent", ("send_id", 2 * PEOPLE)),
            ("email.opened", ("send_id", PEOPLE)),
            ("email.clicked", ("send_id", PEOPLE)),
            ("email.replied", ("send_id", done.answered)),
            ("sequence.completed", ("enrollment_id", PEOPLE)),
            ("task.created", ("enrollment_id", PEOPLE)),
            ("outcome.credited", ("outcome_id", PEOPLE)),
            ("contact.created", ("email", 2 * PEOPLE)),
        ]);
        let told = eventually("every fact to be told", WITHIN, || async {
            let told = self.receiver.told(&wanted);
            let all = wanted.iter().all(|(event, (_, count))| told.get(*event).is_some_and(|of| of.len() == *count));
            all.then_some(told)
        })
        .await;
        for (event, about) in &told {
            for (what, ids) in about {
                // Credit is restated when a click becomes known after the outcome: that is another fact.
                assert!(ids.len() == 1 || *event == "outcome.credited", "{event} of {what} under {ids:?}");
            }
        }
        let about = |event: &str| -> BTreeSet<String> { told[event].keys().cloned().collect() };
        assert_eq!(about("outcome.credited"), done.outcomes);
        assert_eq!(about("sequence.completed"), done.enrollments);
        assert_eq!(about("task.created"), done.enrollments);
        self.receiver.assert_ids_are_stable();
    }

    /// Each effect of the sequence is there, and each step was taken once.
    async fn every_step_is_taken_once(&self) {
        let walkers: Vec<String> = self.people.iter().map(|address| format!("walker-of-{address}")).collect();
        self.rig.sink.wait(2 * PEOPLE as u64, 60_000).await;
        assert_eq!(self.rig.sink.counts(&walkers).await, vec![1; PEOPLE], "the sequence's mail");
        assert_eq!(self.rig.sink.counts(&self.people).await, vec![1; PEOPLE], "the campaign's mail");
        let people = i64::try_from(PEOPLE).unwrap();
        let updated = "select count(*) from contacts where fields->>'plan' = 'pro' and lifecycle_stage = 'customer'";
        assert_eq!(self.rig.number(updated).await, people);
        let tag: Uuid = self.tag.parse().unwrap();
        let tagged: i64 = sqlx::query_scalar("select count(*) from audience_members where audience_id = $1")
            .bind(tag)
            .fetch_one(&self.rig.pool)
            .await
            .unwrap();
        assert_eq!(tagged, people);
        let steps = "select count(*) from enrollment_steps where outcome = 'done'";
        assert_eq!(self.rig.number(steps).await, 5 * people);
        assert_eq!(self.rig.number("select count(*) from enrollment_steps").await, 5 * people);
    }
}

async fn sequence(rig: &Rig, tag: &str) -> String {
    rig.made("/v1/fields", json!({"key": "plan", "label": "Plan", "type": "string"}), "field_id").await;
    let template =
        json!({"name": "W", "template_type": "sequence", "subject": "Welcome", "body_html": "<p>Welcome</p>"});
    let template = rig.made("/v1/templates", template, "template_id").await;
    let steps = json!([
        {"step_type": "update_field", "action_config": {"field": "fields.plan", "value": "pro"}},
        {"step_type": "update_lifecycle_stage", "action_config": {"stage": "customer"}},
        {"step_type": "apply_tag", "action_config": {"tag_id": tag}},
        {"step_type": "send_email", "template_id": template},
        {"step_type": "create_task", "action_config": {"title": "Call"}},
    ]);
    let body = json!({"name": "Welcome", "sender_profile_id": rig.sender_id, "activate": true, "steps": steps});
    rig.made("/v1/sequences", body, "sequence_id").await
}

/// The first link in a mail that leads there.
fn link<'a>(html: &'a str, path: &str) -> &'a str {
    html.split(['"', '\'']).find(|part| part.starts_with("http") && part.contains(path)).unwrap()
}

/// Delivers a mail by SMTP; answers the server's last reply, to the message itself.
pub(crate) async fn deliver_inbound(server: SocketAddr, from: &str, to: &str, mail: &str) -> String {
    let mut stream = BufReader::new(TcpStream::connect(server).await.unwrap());
    let (from, to) = (format!("MAIL FROM:<{from}>\r\n"), format!("RCPT TO:<{to}>\r\n"));
    let message = format!("{mail}.\r\n");
    let dialogue = [
        ("", "220"),
        ("EHLO mx.example\r\n", "250"),
        (&from, "250"),
        (&to, "250"),
        ("DATA\r\n", "354"),
        (&message, ""),
    ];
    let mut reply = String::new();
    for (command, wanted) in dialogue {
        stream.get_mut().write_all(command.as_bytes()).await.unwrap();
        reply.clear();
        while reply.as_bytes().get(3) != Some(&b' ') {
            reply.clear();
            assert_ne!(stream.read_line(&mut reply).await.unwrap(), 0, "the server hung up");
        }
        assert!(reply.starts_with(wanted), "{command:?} was answered {reply:?}");
    }
    reply
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_what_works_after_the_send_loses_no_fact_tells_each_under_one_id_and_takes_no_step_twice() {
    let mut life = Life::start().await;
    let mut done = Done::default();
    for (round, stage) in AFTER.iter().cycle().take(AFTER.len() * TIMES).enumerate() {
        life.answer(2 * round, &mut done).await;
        life.wave(2 * round, &mut done).await;
        // What was just answered is in its hands, or before it …
        life.rig.kill9(stage);
        // … and more comes while nobody does its work.
        life.wave(2 * round + 1, &mut done).await;
        life.rig.start(stage, &["stage", stage]).await;
    }
    life.everything_is_told(&done).await;
    life.every_step_is_taken_once().await;
    let rig = &life.rig;
    eventually("every counter to equal its recount", WITHIN, || async { recount(rig).0.is_empty().then_some(()) })
        .await;
    life.rig.books_balance().await;
}
