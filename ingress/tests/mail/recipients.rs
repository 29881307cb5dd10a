//! What recipients and their mail programs reach: no credentials, a token only.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::Method;
use rstest::rstest;
use schemas::{
    Environment,
    subjects::stream,
    token::{Purpose, click_rest},
};
use serde_json::json;
use stage_rig::until;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    common::PRODUCT,
    fixtures::{Ready, domain, first_on, open_streams},
};

struct Mailed {
    ready: Ready,
    send: Uuid,
}

impl Mailed {
    async fn start() -> Self {
        let ready = Ready::start().await;
        open_streams(&ready.edge).await;
        let campaign = ready.campaign(json!({})).await;
        let send = ready.batch(&campaign, &["sent"]).await[0];
        Self { ready, send }
    }

    fn token(&self, purpose: Purpose) -> String {
        self.ready.edge.ingress.tokens.seal(purpose, self.ready.client.tenant, self.send, b"")
    }

    fn click(&self, url: &str) -> String {
        self.ready.edge.ingress.tokens.seal(Purpose::Click, self.ready.client.tenant, self.send, &click_rest(2, url))
    }

    async fn opted_out(&self) -> i64 {
        self.ready
            .edge
            .count(
                "select count(*) from contacts c join suppressions s on s.address = c.address and s.reason = 'unsubscribe'
                 where c.marketing_status = 'unsubscribed'",
            )
            .await
    }

    /// How the recipient left by each fact, and with what.
    async fn facts(&self) -> Vec<(String, String)> {
        sqlx::query_as(
            "select e.detail->>'method', e.detail->>'user_agent' from events e
             join sends s on s.tenant_id = e.tenant_id and s.id = e.send_id and s.unsubscribed_at = e.occurred_at
             where e.type = 'unsubscribed'",
        )
        .fetch_all(&self.ready.edge.pool)
        .await
        .unwrap()
    }

    async fn signals(&self) -> u64 {
        let bus = &self.ready.edge.ingress.bus;
        let mut stream = bus.jetstream().get_stream(bus.prefixed(stream::SIGNALS)).await.unwrap();
        stream.info().await.unwrap().state.messages
    }
}

#[tokio::test]
async fn a_pixel_is_an_image_nobody_keeps_and_an_open() {
    let mailed = Mailed::start().await;
    let answer = mailed.ready.client.ask(Method::GET, &format!("/t/o/{}", mailed.token(Purpose::Open)), "").await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "image/gif"));
    assert!(answer.bytes.starts_with(b"GIF89a") && answer.header("cache-control").contains("no-store"));
    assert!(!answer.headers.contains_key("set-cookie"));
    let (subject, signal) = first_on(&mailed.ready.edge, stream::SIGNALS).await;
    assert!(subject.ends_with("mail.v1.signal.tracking"));
    assert_eq!((&signal["kind"], &signal["send_id"]), (&json!("opened"), &json!(mailed.send)));
    assert_eq!((&signal["tenant_id"], &signal["user_agent"]), (&json!(mailed.ready.client.tenant), &json!("Test/1.0")));
}

#[tokio::test]
async fn a_click_leads_to_the_signed_address_and_is_noted() {
    let mailed = Mailed::start().await;
    let url = "https://shop.example/a?b=c&d=%20e#f";
    let answer = mailed.ready.client.ask(Method::GET, &format!("/t/c/{}", mailed.click(url)), "").await;
    assert_eq!((answer.status.as_u16(), answer.header("location")), (302, url));
    assert_eq!(answer.header("referrer-policy"), "no-referrer");
    let (_, signal) = first_on(&mailed.ready.edge, stream::SIGNALS).await;
    assert_eq!((&signal["kind"], &signal["url"], &signal["link"]), (&json!("clicked"), &json!(url), &json!(2)));
}

#[tokio::test]
async fn a_head_request_is_answered_alike_and_notes_nothing() {
    let mailed = Mailed::start().await;
    let click = format!("/t/c/{}", mailed.click("https://shop.example/"));
    for (path, status) in [
        (format!("/t/o/{}", mailed.token(Purpose::Open)), 200),
        (click.clone(), 302),
        (format!("/u/{}", mailed.token(Purpose::Unsubscribe)), 200),
    ] {
        let answer = mailed.ready.client.ask(Method::HEAD, &path, "").await;
        assert_eq!((answer.status.as_u16(), answer.bytes.len()), (status, 0), "{path}");
    }
    // The next signal is the first: the ones before left none.
    mailed.ready.client.ask(Method::GET, &click, "").await;
    assert_eq!(first_on(&mailed.ready.edge, stream::SIGNALS).await.1["kind"], json!("clicked"));
    assert_eq!((mailed.signals().await, mailed.opted_out().await), (1, 0));
}

#[tokio::test]
async fn a_link_works_on_its_senders_host_and_on_ours_and_speaks_for_nobody_else() {
    let mailed = Mailed::start().await;
    let other = mailed.ready.edge.client_for(PRODUCT, Environment::Production, "bank").await.tenant;
    domain(&mailed.ready.edge.pool, mailed.ready.client.tenant, "shop.example", "verified").await;
    domain(&mailed.ready.edge.pool, other, "bank.example", "degraded").await;
    domain(&mailed.ready.edge.pool, other, "claimed.example", "pending").await;
    domain(&mailed.ready.edge.pool, other, "postrider.dev", "verified").await;
    sqlx::query("update tenants set org_name = 'Shop Inc' where id = $1")
        .bind(mailed.ready.client.tenant)
        .execute(&mailed.ready.edge.pool)
        .await
        .unwrap();
    let click = format!("/t/c/{}", mailed.click("https://shop.example/"));
    let leave = format!("/u/{}", mailed.token(Purpose::Unsubscribe));
    let preferences = format!("/p/{}", mailed.token(Purpose::Preferences));
    for (host, is_foreign) in [
        ("link.shop.example", false),
        ("mail.example.net", false),
        ("bank.example", false),
        ("link.claimed.example", false),
        ("link.postrider.dev", false),
        ("link.bank.example", true),
        ("LINK.Bank.example.:8443", true),
    ] {
        let ask = async |path: &str| mailed.ready.client.ask(Method::GET, &format!("http://{host}{path}"), "").await;
        assert_eq!(ask(&click).await.status, if is_foreign { 404 } else { 302 }, "{host}");
        assert_eq!(ask(&preferences).await.status, if is_foreign { 404 } else { 200 }, "{host}");
        let page = ask(&leave).await;
        let has_name = String::from_utf8(page.bytes).unwrap().contains("Shop Inc");
        assert_eq!((page.status.as_u16(), has_name), (200, !is_foreign), "{host}");
    }
    let path = format!("http://link.bank.example{leave}");
    let left = mailed.ready.client.ask(Method::POST, &path, "List-Unsubscribe=One-Click").await;
    assert_eq!((left.status.as_u16(), mailed.opted_out().await), (200, 1), "one can leave everywhere");
    assert!(!String::from_utf8(left.bytes).unwrap().contains("/p/"), "the preferences are not there");
}

#[rstest]
#[case("/t/o/", Purpose::Open, Purpose::Click)]
#[case("/t/c/", Purpose::Click, Purpose::Open)]
#[case("/u/", Purpose::Unsubscribe, Purpose::Open)]
#[tokio::test]
async fn a_token_that_is_forged_cut_or_for_another_purpose_is_a_404(
    #[case] path: &str,
    #[case] purpose: Purpose,
    #[case] other: Purpose,
) {
    let mailed = Mailed::start().await;
    let good = if purpose == Purpose::Click { mailed.click("https://shop.example/") } else { mailed.token(purpose) };
    let strangers = schemas::token::TokenKeys::derive(&[[7; 32]]);
    let mut bent = good.clone();
    bent.replace_range(20..21, if &good[20..21] == "A" { "B" } else { "A" });
    let bad = [
        strangers.seal(purpose, mailed.ready.client.tenant, mailed.send, b""),
        good[..good.len() - 1].to_owned(),
        good[..good.len() / 2].to_owned(),
        bent,
        mailed.token(other),
        "v1".to_owned(),
        "x".repeat(5_000),
    ];
    let methods: &[Method] =
        if path == "/u/" { &[Method::GET, Method::HEAD, Method::POST] } else { &[Method::GET, Method::HEAD] };
    for method in methods {
        for token in &bad {
            assert_eq!(
                mailed.ready.client.ask(method.clone(), &format!("{path}{token}"), "").await.status,
                404,
                "{method} {token}"
            );
        }
        assert_ne!(mailed.ready.client.ask(method.clone(), &format!("{path}{good}"), "").await.status, 404);
    }
}

#[rstest]
#[case("javascript:alert(1)")]
#[case("/relative")]
#[case("")]
#[tokio::test]
async fn a_signed_target_that_is_no_web_address_is_not_followed(#[case] url: &str) {
    let mailed = Mailed::start().await;
    assert_eq!(mailed.ready.client.ask(Method::GET, &format!("/t/c/{}", mailed.click(url)), "").await.status, 404);
}

#[tokio::test]
async fn an_unsubscribe_link_works_longer_than_the_ledger_keeps_its_send() {
    let mailed = Mailed::start().await;
    let edge = &mailed.ready.edge;
    let contact: Uuid = sqlx::query_scalar("select contact_id from sends where id = $1")
        .bind(mailed.send)
        .fetch_one(&edge.pool)
        .await
        .unwrap();
    let token =
        edge.ingress.tokens.seal(Purpose::Unsubscribe, mailed.ready.client.tenant, mailed.send, contact.as_bytes());
    sqlx::query("delete from sends").execute(&edge.pool).await.unwrap();
    for _ in 0..2 {
        let left = mailed.ready.client.ask(Method::POST, &format!("/u/{token}"), "List-Unsubscribe=One-Click").await;
        assert_eq!((left.status.as_u16(), mailed.opted_out().await), (200, 1));
    }
    assert_eq!(edge.count("select count(*) from notices where type = 'email.unsubscribed'").await, 1);
    // A token of before names its send alone.
    let path = format!("/u/{}", mailed.token(Purpose::Unsubscribe));
    assert_eq!(mailed.ready.client.ask(Method::POST, &path, "List-Unsubscribe=One-Click").await.status, 404);
}

#[tokio::test]
async fn looking_at_the_unsubscribe_page_changes_nothing() {
    let mailed = Mailed::start().await;
    sqlx::query("update tenants set org_name = 'Acme & <Sons>'").execute(&mailed.ready.edge.pool).await.unwrap();
    let path = format!("/u/{}", mailed.token(Purpose::Unsubscribe));
    for query in ["", "?List-Unsubscribe=One-Click", "?confirm=yes"] {
        let answer = mailed.ready.client.ask(Method::GET, &format!("{path}{query}"), "").await;
        let html = String::from_utf8(answer.bytes.clone()).unwrap();
        assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "text/html; charset=utf-8"));
        assert!(html.contains("<form method=\"post\">") && html.contains("Acme &amp; &lt;Sons&gt;"), "{html}");
        assert!(answer.header("content-security-policy").contains("frame-ancestors 'none'"));
        assert_eq!((answer.header("x-frame-options"), answer.header("referrer-policy")), ("DENY", "no-referrer"));
        assert!(!answer.headers.contains_key("set-cookie") && !answer.headers.contains_key("ratelimit"));
    }
    assert_eq!((mailed.opted_out().await, mailed.signals().await), (0, 0));
}

#[rstest]
#[case("List-Unsubscribe=One-Click", "one_click")]
#[case("confirm=yes", "page")]
#[tokio::test]
async fn a_post_has_opted_out_before_it_is_answered(#[case] body: &str, #[case] method: &str) {
    let mailed = Mailed::start().await;
    let path = format!("/u/{}", mailed.token(Purpose::Unsubscribe));
    for _ in 0..2 {
        let answer = mailed.ready.client.ask(Method::POST, &path, body).await;
        assert_eq!((answer.status.as_u16(), mailed.opted_out().await), (200, 1));
        assert!(String::from_utf8(answer.bytes).unwrap().contains("You are unsubscribed"));
    }
    assert_eq!(mailed.ready.edge.count("select count(*) from suppressions").await, 1);
    assert_eq!(
        mailed.facts().await,
        [(method.to_owned(), "Test/1.0".to_owned())],
        "one fact, committed before the answer"
    );
    assert_eq!(mailed.ready.edge.count("select unsubscribed::bigint from batches").await, 1);
}

#[rstest]
#[case::one_click("/u/", Purpose::Unsubscribe, "List-Unsubscribe=One-Click")]
#[case::preferences("/p/", Purpose::Preferences, "action=leave")]
#[tokio::test]
async fn an_unsubscribe_that_waits_for_an_import_leaves_its_batch_to_other_mail(
    #[case] path: &str,
    #[case] purpose: Purpose,
    #[case] body: &str,
) {
    let mailed = Mailed::start().await;
    let pool = &mailed.ready.edge.pool;
    let mut import = pool.begin().await.unwrap();
    sqlx::query("select 1 from contacts for update").fetch_all(&mut *import).await.unwrap();
    let path = format!("{path}{}", mailed.token(purpose));
    let asked = mailed.ready.client.ask(Method::POST, &path, body);
    let beside = async {
        until("the batch is held", async || {
            let free = "select count(*) from (select from batches for no key update skip locked) b";
            mailed.ready.edge.count(free).await == 0
        })
        .await;
        // What the lane of this batch waits for.
        let mut delivery = pool.begin().await.unwrap();
        sqlx::query("set local lock_timeout = '5s'").execute(&mut *delivery).await.unwrap();
        sqlx::query("select 1 from batches for no key update").fetch_all(&mut *delivery).await.unwrap();
        delivery.rollback().await.unwrap();
        import.rollback().await.unwrap();
    };
    let (answer, ()) = tokio::join!(asked, beside);
    assert_eq!((answer.status.as_u16(), mailed.opted_out().await), (200, 1));
}

#[rstest]
#[case("")]
#[case("confirm=no")]
#[case("List-Unsubscribe=")]
#[tokio::test]
async fn a_post_that_is_neither_the_button_nor_one_click_is_refused(#[case] body: &str) {
    let mailed = Mailed::start().await;
    let answer =
        mailed.ready.client.ask(Method::POST, &format!("/u/{}", mailed.token(Purpose::Unsubscribe)), body).await;
    let html = String::from_utf8(answer.bytes).unwrap();
    assert_eq!((answer.status.as_u16(), mailed.opted_out().await), (400, 0));
    assert!(html.contains("Nothing was changed") && html.contains("<form method=\"post\">"), "{html}");
}

/// There is no stream here: what a page of ours is told must not hang on the bus.
#[rstest]
#[case::page("/u/", Purpose::Unsubscribe, "confirm=yes", "page")]
#[case::one_click("/u/", Purpose::Unsubscribe, "List-Unsubscribe=One-Click", "one_click")]
#[case::preferences("/p/", Purpose::Preferences, "action=leave", "preferences")]
#[tokio::test]
async fn an_opt_out_is_committed_with_its_fact_while_the_bus_is_away(
    #[case] path: &str,
    #[case] purpose: Purpose,
    #[case] body: &str,
    #[case] method: &str,
) {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let send = ready.batch(&campaign, &["sent"]).await[0];
    let mailed = Mailed { ready, send };
    let path = format!("{path}{}", mailed.token(purpose));
    for _ in 0..2 {
        assert_eq!(mailed.ready.client.ask(Method::POST, &path, body).await.status, 200);
    }
    assert_eq!(mailed.opted_out().await, 1);
    assert_eq!(mailed.facts().await, [(method.to_owned(), "Test/1.0".to_owned())]);
    let edge = &mailed.ready.edge;
    assert_eq!(
        edge.count("select count(*) from contact_facts where fact = 'unsubscribed'").await,
        1,
        "segments know it"
    );
    assert_eq!(edge.count("select sum(count)::bigint from rollups where event = 'unsubscribed'").await, 1);
    let told = mailed.ready.client.get(&format!("/v1/sends/{send}")).await;
    let timeline = told.body["send"]["timeline"].as_array().unwrap();
    assert_eq!(timeline.iter().filter(|entry| entry["type"] == "unsubscribed").count(), 1, "{}", told.body);
    let report = mailed.ready.client.get(&format!("/v1/campaigns/{campaign}")).await;
    assert_eq!(report.body["send_counts"]["unsubscribed"], 1, "{}", report.body);
}

#[tokio::test]
async fn an_opt_out_that_cannot_be_stored_is_not_confirmed() {
    let mailed = Mailed::start().await;
    sqlx::query("revoke all on suppressions from postrider_ingress").execute(&mailed.ready.edge.pool).await.unwrap();
    let answer = mailed
        .ready
        .client
        .ask(Method::POST, &format!("/u/{}", mailed.token(Purpose::Unsubscribe)), "confirm=yes")
        .await;
    assert!(answer.status.is_server_error() && !answer.header("retry-after").is_empty(), "{}", answer.status);
    assert!(String::from_utf8(answer.bytes).unwrap().contains("not yet"));
    assert_eq!((mailed.opted_out().await, mailed.signals().await), (0, 0));
}

#[tokio::test]
async fn a_link_that_is_posted_many_times_at_once_keeps_no_other_request_waiting() {
    let mailed = Mailed::start().await;
    let pool = &mailed.ready.edge.pool;
    let mut held = pool.begin().await.unwrap();
    sqlx::query("select from batches for update").execute(&mut *held).await.unwrap();
    let links =
        [("/u/", Purpose::Unsubscribe, "List-Unsubscribe=One-Click"), ("/p/", Purpose::Preferences, "action=leave")];
    let posts = links.map(|(path, purpose, body)| (format!("{path}{}", mailed.token(purpose)), body));
    let posts = (0..40).map(|n| mailed.ready.client.ask(Method::POST, &posts[n % 2].0, posts[n % 2].1));
    let mut posts = std::pin::pin!(futures::future::join_all(posts));
    let others = async {
        mailed.ready.edge.until_waiting(1).await;
        for _ in 0..20 {
            assert_eq!(mailed.ready.client.get("/v1/tenant").await.status, 200);
        }
        assert_eq!(mailed.ready.edge.waiting().await, 1, "the others wait without a connection");
    };
    tokio::select! {
        _ = &mut posts => panic!("answered while the batch was held"),
        () = others => {}
    }
    held.rollback().await.unwrap();
    for answer in posts.await {
        assert_eq!(answer.status, 200);
    }
    assert_eq!((mailed.opted_out().await, mailed.facts().await.len()), (1, 1));
}

#[tokio::test]
async fn a_link_that_is_posted_without_end_keeps_nobody_of_its_batch_waiting() {
    let mut mailed = Mailed::start().await;
    let campaign = mailed.ready.campaign(json!({})).await;
    let sends = mailed.ready.batch(&campaign, &["sent", "sent"]).await;
    let paths = [0, 1].map(|at| {
        mailed.send = sends[at];
        format!("/u/{}", mailed.token(Purpose::Unsubscribe))
    });
    let mut held = mailed.ready.edge.pool.begin().await.unwrap();
    sqlx::query("select from batches for update").execute(&mut *held).await.unwrap();
    let answered = AtomicUsize::new(0);
    let posts = (0..40).map(|_| async {
        assert_eq!(mailed.ready.client.ask(Method::POST, &paths[0], "confirm=yes").await.status, 200);
        answered.fetch_add(1, Ordering::Relaxed);
    });
    let others = async {
        mailed.ready.edge.until_waiting(1).await;
        // It comes while the first of them is at the batch, and the others are behind it.
        let release = async {
            mailed.ready.edge.until_waiting(1).await;
            held.rollback().await.unwrap();
        };
        let (other, ()) = tokio::join!(mailed.ready.client.ask(Method::POST, &paths[1], "confirm=yes"), release);
        assert_eq!(other.status, 200);
        answered.load(Ordering::Relaxed)
    };
    let (_, before) = tokio::join!(futures::future::join_all(posts), others);
    assert!(before < 20, "{before} posts of another came first");
}

#[tokio::test]
async fn a_token_works_for_its_own_tenant_only() {
    let mailed = Mailed::start().await;
    let other = mailed.ready.edge.client_for("crm", mailed.ready.client.environment, "tenant-2").await;
    let token = mailed.ready.edge.ingress.tokens.seal(Purpose::Unsubscribe, other.tenant, mailed.send, b"");
    assert_eq!(mailed.ready.client.ask(Method::POST, &format!("/u/{token}"), "confirm=yes").await.status, 404);
    assert_eq!(mailed.opted_out().await, 0);
}

/// A listener of its own.
async fn listen(mailed: &Mailed) -> SocketAddr {
    ingress::serve(Arc::clone(&mailed.ready.edge.ingress), CancellationToken::new()).await.unwrap().address
}

/// Sends a bare request over a real connection.
async fn connect(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_client_that_hangs_up_during_its_post_has_left_all_the_same() {
    let mailed = Mailed::start().await;
    let (address, pool) = (listen(&mailed).await, &mailed.ready.edge.pool);
    let mut held = pool.begin().await.unwrap();
    sqlx::query("select from contacts for update").execute(&mut *held).await.unwrap();
    let path = format!("/u/{}", mailed.token(Purpose::Unsubscribe));
    let request = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 26\r\n\r\nList-Unsubscribe=One-Click");
    let stream = connect(address, &request).await;
    mailed.ready.edge.until_waiting(1).await;
    drop(stream);
    // Another request on the same reactor: when it is answered, the first client's absence has been noticed.
    let mut other = connect(address, "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    other.read_to_end(&mut Vec::new()).await.unwrap();
    held.rollback().await.unwrap();
    while mailed.opted_out().await == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(mailed.ready.edge.count("select count(*) from events where type = 'unsubscribed'").await, 1);
}

#[tokio::test]
async fn a_signal_names_the_other_end_of_the_connection_and_no_header() {
    let mailed = Mailed::start().await;
    let path = format!("/t/o/{}", mailed.token(Purpose::Open));
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 10.9.8.7\r\n\r\n");
    let _open = connect(listen(&mailed).await, &request).await;
    assert_eq!(first_on(&mailed.ready.edge, stream::SIGNALS).await.1["ip"], json!("127.0.0.1"));
}

#[tokio::test]
async fn a_huge_post_is_refused_and_does_nothing() {
    let mailed = Mailed::start().await;
    let answer = mailed
        .ready
        .client
        .ask(Method::POST, &format!("/u/{}", mailed.token(Purpose::Unsubscribe)), &"x".repeat(20_000))
        .await;
    assert_eq!((answer.status.as_u16(), mailed.opted_out().await), (413, 0));
}

#[tokio::test]
async fn signals_of_one_send_are_bounded_and_all_answered() {
    let mailed = Mailed::start().await;
    let open = format!("/t/o/{}", mailed.token(Purpose::Open));
    let click = format!("/t/c/{}", mailed.click("https://shop.example/"));
    for _ in 0..40 {
        assert_eq!(mailed.ready.client.ask(Method::GET, &open, "").await.status, 200);
        assert_eq!(mailed.ready.client.ask(Method::GET, &click, "").await.status, 302);
    }
    let tasks = &mailed.ready.edge.ingress.tasks;
    tasks.close();
    tasks.wait().await;
    assert_eq!(mailed.signals().await, 60);
}
