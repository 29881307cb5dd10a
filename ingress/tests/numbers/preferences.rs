//! The preferences page: topics, leaving, coming back.

use http::Method;
use rstest::rstest;
use schemas::{SendId, token::Purpose};
use serde_json::json;
use uuid::Uuid;

use crate::reader::{Reader, html};

#[tokio::test]
async fn looking_at_the_page_changes_nothing() {
    let reader = Reader::start().await;
    let (news, offers) = (reader.topic("News", true).await, reader.topic("Offers", false).await);
    let path = reader.path(Purpose::Preferences);
    for query in ["", "?action=leave", "?action=save"] {
        let answer = reader.ask(Method::GET, &format!("{path}{query}"), "en", "").await;
        let page = html(&answer);
        assert_eq!(answer.status, 200);
        assert!(page.contains("Acme &amp; Söhne") && page.contains("All about News"), "{page}");
        assert!(!page.contains("Offers"), "a list he was never on is none of his business");
        assert!(page.contains("r…@example.com") && !page.contains("reader1@"), "{page}");
        assert!(answer.header("content-security-policy").contains("frame-ancestors 'none'"));
        assert_eq!((answer.header("referrer-policy"), answer.header("content-language")), ("no-referrer", "en"));
        assert!(
            answer.header("x-robots-tag").contains("noindex") && answer.header("cache-control").contains("no-store")
        );
    }
    assert!(reader.is_in(news).await && !reader.is_in(offers).await);
    assert_eq!(reader.count("select count(*) from suppressions").await, 0);
}

#[tokio::test]
async fn who_leaves_a_topic_stays_away_whoever_adds_him_until_he_comes_back_himself() {
    let reader = Reader::start().await;
    let (news, offers) = (reader.topic("News", true).await, reader.topic("Offers", true).await);
    let form = format!("shown={news}&shown={offers}&topic={offers}&action=save");
    for _ in 0..2 {
        let answer = reader.submit(&form).await;
        assert!(answer.status == 200 && html(&answer).contains("Your choices are saved"), "{}", html(&answer));
        assert!(!reader.is_in(news).await && reader.is_in(offers).await);
    }
    let told: Vec<(String, String)> =
        sqlx::query_as("select detail->>'topic', detail->>'method' from events where type = 'topic_left'")
            .fetch_all(&reader.ready.edge.pool)
            .await
            .unwrap();
    assert_eq!(told, [(news.to_string(), "preferences".to_owned())], "once, however often the form was sent");
    let added = reader.add(news).await;
    assert_eq!((added.body["added"].as_i64(), added.body["departed"].as_i64()), (Some(0), Some(1)));
    let csv = "email,list\nreader1@example.com,News\n";
    let answer = reader.ready.client.post("/v1/imports", json!({"csv": csv})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!((&answer.body["counts"]["unchanged"], &answer.body["counts"]["updated"]), (&json!(1), &json!(0)));
    assert!(!reader.is_in(news).await, "an import never lifts it");
    let page = reader.look().await;
    assert!(
        page.contains(&format!("id=\"t-{news}\" name=\"topic\" value=\"{news}\" aria")),
        "shown, not ticked: {page}"
    );
    assert!(page.contains(&format!("value=\"{offers}\" checked")), "{page}");
    reader.submit(&format!("shown={news}&topic={news}&action=save")).await;
    assert!(reader.is_in(news).await && reader.is_in(offers).await, "what was not shown stays");
    assert_eq!(reader.marketing_status().await, "subscribed");
}

#[tokio::test]
async fn the_link_of_a_merged_contact_shows_and_changes_the_topics_of_the_survivor() {
    let reader = Reader::start().await;
    let news = reader.topic("News", true).await;
    let client = &reader.ready.client;
    let survivor = client.post("/v1/contacts", json!({"email": "survivor@example.org"})).await.text("contact_id");
    let merged = client.post(&format!("/v1/contacts/{survivor}/merge"), json!({"contact_id": reader.contact})).await;
    assert_eq!(merged.status, 200, "{}", merged.body);
    let page = reader.look().await;
    assert!(page.contains(&format!("value=\"{news}\" checked")), "{page}");
    assert!(
        page.contains("r…@example.com") && !page.contains("example.org"),
        "the address is that of the mail: {page}"
    );
    reader.submit(&format!("shown={news}&action=save")).await;
    let left =
        "select count(*) from topic_opt_outs d join contacts c on c.id = d.contact_id where c.merged_into is null";
    assert_eq!(reader.count(left).await, 1);
    assert_eq!(reader.count("select count(*) from audience_members m join audiences a on a.id = m.audience_id where a.public_name is not null").await, 0);
}

#[tokio::test]
async fn the_link_of_a_merged_contact_leaves_and_returns_for_the_survivor() {
    let reader = Reader::start().await;
    let client = &reader.ready.client;
    let survivor = client.post("/v1/contacts", json!({"email": "survivor@example.org"})).await.text("contact_id");
    let path = format!("/v1/contacts/{survivor}");
    client.post(&format!("{path}/merge"), json!({"contact_id": reader.contact})).await;
    reader.submit("action=leave").await;
    let left = client.get(&path).await.body["contact"].clone();
    assert_eq!(
        (&left["suppression"]["reason"], &left["marketing_status"]),
        (&json!("unsubscribe"), &json!("unsubscribed"))
    );
    let page = html(&reader.submit("action=return").await);
    assert!(page.contains("You are subscribed again") && !page.contains("Subscribe again"), "{page}");
    assert_eq!(reader.count("select count(*) from suppressions").await, 0);
    let back = client.get(&path).await.body["contact"].clone();
    assert_eq!(
        (&back["marketing_status"], &back["consent"]["source"]),
        (&json!("subscribed"), &json!("preferences_page"))
    );
    // The survivor has left by a mail of its own.
    client.patch(&path, json!({"marketing_status": "unsubscribed"})).await;
    assert!(reader.look().await.contains("Subscribe again"));
}

#[tokio::test]
async fn the_pages_of_a_recipient_read_no_other_contact() {
    let reader = Reader::start().await;
    let (edge, tenant) = (&reader.ready.edge, reader.ready.client.tenant);
    sqlx::query(
        "insert into contacts (tenant_id, id, address)
         select $1, gen_random_uuid(), 'p' || n || '@example.com' from generate_series(1, 5000) n",
    )
    .bind(tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    sqlx::query("analyze contacts").execute(&edge.pool).await.unwrap();
    let ids = [tenant, reader.send, reader.contact].map(|id| format!("'{id}'::uuid"));
    let month = format!("'{}'::date", SendId(reader.send).month());
    let parameters = [ids[0].as_str(), ids[1].as_str(), month.as_str(), ids[2].as_str()];
    for (source, beginning) in [
        (include_str!("../../src/public/unsubscribe/mod.rs"), "select t.org_name"),
        (include_str!("../../../stages/shared/ledger/src/preferences.rs"), "select c.id as contact_id"),
    ] {
        let mut statements = source.split("r#\"").filter_map(|text| text.split("\"#").next());
        let statement = statements.find(|text| text.starts_with(beginning)).unwrap();
        let in_vain = edge.rows_in_vain(tenant, statement, &parameters).await;
        assert!(in_vain < 500.0, "{in_vain} rows were looked at in vain: {statement}");
    }
}

#[tokio::test]
async fn a_topic_left_while_the_contact_is_merged_is_left() {
    let reader = Reader::start().await;
    let news = reader.topic("News", true).await;
    let client = &reader.ready.client;
    let survivor = client.post("/v1/contacts", json!({"email": "survivor@example.org"})).await.text("contact_id");
    let mut merging = reader.ready.edge.pool.begin().await.unwrap();
    for sql in [
        "select from contacts where id in ($1, $2) for update",
        "update audience_members set contact_id = $2 where contact_id = $1",
        "update contacts set status = 'merged', merged_into = $2 where id = $1",
    ] {
        let query = sqlx::query(sql).bind(reader.contact).bind(survivor.parse::<Uuid>().unwrap());
        query.execute(&mut *merging).await.unwrap();
    }
    let form = format!("shown={news}&action=save");
    let merged = async {
        reader.ready.edge.until_waiting(1).await;
        merging.commit().await.unwrap();
    };
    let (saved, ()) = tokio::join!(reader.submit(&form), merged);
    assert!(html(&saved).contains("Your choices are saved"), "{}", html(&saved));
    let left =
        "select count(*) from topic_opt_outs d join contacts c on c.id = d.contact_id where c.address like 'survivor%'";
    assert_eq!(reader.count(left).await, 1);
    let members =
        "select count(*) from audience_members m join audiences a on a.id = m.audience_id where a.name = 'News'";
    assert_eq!(reader.count(members).await, 0);
}

/// A request that needs several contacts locks them in the order of their ids: here the lower first, then the higher.
#[rstest]
#[case::link(Uuid::nil(), "unsubscribe")]
#[case::suppression(Uuid::nil(), "suppress")]
#[case::erasure(Uuid::max(), "erase")]
#[tokio::test]
async fn a_contact_and_its_survivor_are_locked_in_the_order_of_their_ids(#[case] survivor: Uuid, #[case] writer: &str) {
    let reader = Reader::start().await;
    let (client, pool) = (&reader.ready.client, &reader.ready.edge.pool);
    sqlx::query("insert into contacts (tenant_id, id, address) values ($1, $2, 'survivor@example.org')")
        .bind(client.tenant)
        .bind(survivor)
        .execute(pool)
        .await
        .unwrap();
    sqlx::query("update contacts set status = 'merged', merged_into = $2 where id = $1")
        .bind(reader.contact)
        .bind(survivor)
        .execute(pool)
        .await
        .unwrap();
    let mut other = pool.begin().await.unwrap();
    let mut ids = [survivor, reader.contact];
    ids.sort_unstable();
    let lock = "select from contacts where id = $1 for no key update";
    sqlx::query(lock).bind(ids[0]).execute(&mut *other).await.unwrap();
    let email = json!({"email": "reader1@example.com", "reason": "unsubscribe"});
    let writing = async {
        match writer {
            "unsubscribe" => reader.ask(Method::POST, &reader.path(Purpose::Unsubscribe), "en", "confirm=yes").await,
            "suppress" => client.post("/v1/suppressions", email).await,
            _ => client.delete(&format!("/v1/contacts/{}", reader.contact), json!({"erase": true})).await,
        }
    };
    let locking = async {
        reader.ready.edge.until_waiting(1).await;
        sqlx::query(lock).bind(ids[1]).execute(&mut *other).await.expect("a deadlock");
        other.commit().await.unwrap();
    };
    let (answer, ()) = tokio::join!(writing, locking);
    assert!(answer.status.is_success(), "{}", answer.status);
}

#[tokio::test]
async fn the_links_of_an_erased_contact_change_nothing_of_a_new_one() {
    let reader = Reader::start().await;
    let client = &reader.ready.client;
    let path = format!("/v1/contacts/{}", reader.contact);
    assert_eq!(client.delete(&path, json!({"erase": true})).await.status, 200);
    client.post("/v1/contacts", json!({"email": "reader1@example.com"})).await;
    for (purpose, form) in
        [(Purpose::Unsubscribe, "confirm=yes"), (Purpose::Unsubscribe, ""), (Purpose::Preferences, "action=leave")]
    {
        for method in [Method::GET, Method::POST] {
            assert_eq!(reader.ask(method, &reader.path(purpose), "en", form).await.status, 404, "{form}");
        }
    }
    assert_eq!(reader.count("select count(*) from suppressions").await, 0);
}

#[tokio::test]
async fn a_list_without_a_public_name_cannot_be_left_or_joined_here() {
    let reader = Reader::start().await;
    let plain = reader.ready.list;
    assert!(reader.is_in(plain).await);
    let stranger = reader.topic("Offers", false).await;
    reader.submit(&format!("shown={plain}&shown={stranger}&topic={stranger}&action=save")).await;
    assert!(reader.is_in(plain).await && !reader.is_in(stranger).await);
}

#[tokio::test]
async fn a_topic_that_was_shown_is_left_however_many_have_come_before_it_since() {
    let reader = Reader::start().await;
    let last = reader.topic("Zebras", true).await;
    assert!(!reader.look().await.contains("at most 100 topics"));
    sqlx::query(
        "with topics as (
             insert into audiences (tenant_id, id, kind, name, public_name)
             select tenant_id, gen_random_uuid(), 'list', 'topic ' || n, 'Topic ' || n
             from contacts, generate_series(1, 100) n where id = $1
             returning tenant_id, id
         )
         insert into audience_members (tenant_id, audience_id, contact_id) select tenant_id, id, $1 from topics",
    )
    .bind(reader.contact)
    .execute(&reader.ready.edge.pool)
    .await
    .unwrap();
    let page = reader.look().await;
    assert!(page.contains("at most 100 topics") && !page.contains("Zebras"), "{page}");
    reader.submit(&format!("shown={last}&action=save")).await;
    assert!(!reader.is_in(last).await);
}

#[tokio::test]
async fn a_topic_left_after_the_tenant_removed_the_member_is_left() {
    let reader = Reader::start().await;
    let news = reader.topic("News", true).await;
    // The page is open; meanwhile the tenant takes the contact off the list.
    let path = format!("/v1/audiences/{news}/members");
    let removed = reader.ready.client.post(&path, json!({"remove": [reader.contact]})).await;
    assert!(removed.status == 200 && !reader.is_in(news).await, "{}", removed.body);
    let answer = reader.submit(&format!("shown={news}&action=save")).await;
    assert!(html(&answer).contains("Your choices are saved"), "{}", html(&answer));
    assert_eq!(reader.count("select count(*) from events where type = 'topic_left'").await, 1);
    let added = reader.add(news).await;
    assert_eq!((added.body["added"].as_i64(), added.body["departed"].as_i64()), (Some(0), Some(1)));
    assert!(!reader.is_in(news).await);
    reader.submit(&format!("shown={news}&topic={news}&action=save")).await;
    assert!(reader.is_in(news).await, "the recipient comes back");
}

#[tokio::test]
async fn leaving_everything_is_committed_before_it_is_answered_and_noted_once() {
    let reader = Reader::start().await;
    for _ in 0..2 {
        let answer = reader.submit("action=leave").await;
        let page = html(&answer);
        assert!(page.contains("You get no marketing email") && page.contains("Subscribe again"), "{page}");
        assert!(!page.contains("name=\"topic\""), "{page}");
        assert_eq!(reader.marketing_status().await, "unsubscribed");
    }
    assert_eq!(
        reader.count("select count(*) from suppressions where reason = 'unsubscribe' and source = 'recipient'").await,
        1
    );
    let noted = "select count(*) from events where type = 'unsubscribed' and detail->>'method' = 'preferences'";
    assert_eq!(reader.count(noted).await, 1, "committed with the choice, however often the button was pressed");
}

#[tokio::test]
async fn only_the_recipient_himself_comes_back_and_his_consent_is_kept() {
    let reader = Reader::start().await;
    reader.submit("action=leave").await;
    let body = json!({"email": "reader1@example.com"});
    let refused = reader.ready.client.delete("/v1/suppressions", body).await;
    assert!(!refused.status.is_success(), "{}", refused.body);
    for _ in 0..2 {
        let answer = reader.submit("action=return").await;
        assert!(html(&answer).contains("You are subscribed again"), "{}", html(&answer));
        assert_eq!(reader.marketing_status().await, "subscribed");
    }
    assert_eq!(reader.count("select count(*) from suppressions").await, 0);
    assert_eq!(reader.count("select count(opted_in_at) from contacts").await, 1, "his own word");
    let evidence =
        "select count(*) from contacts where consent_basis = 'express' and consent_source = 'preferences_page'
                    and consent_at > now() - interval '1 minute' and consent_description like '%send%'";
    assert_eq!(reader.count(evidence).await, 1);
    let event = "select count(*) from events where type = 'resubscribed' and detail->>'user_agent' = 'Test/1.0'";
    assert_eq!(reader.count(event).await, 1, "once, however often the button was pressed");
}

#[tokio::test]
async fn a_mail_has_so_many_events_of_choices_and_every_choice_counts() {
    let reader = Reader::start().await;
    let news = reader.topic("News", true).await;
    // All but one.
    for kind in ["topic_left", "resubscribed"] {
        sqlx::query(
            "insert into events (tenant_id, send_id, id, month, type, occurred_at)
             select $1, $2, gen_random_uuid(), $3, $4, now() from generate_series(1, 199)",
        )
        .bind(reader.ready.client.tenant)
        .bind(reader.send)
        .bind(schemas::month_of(reader.send))
        .bind(kind)
        .execute(&reader.ready.edge.pool)
        .await
        .unwrap();
    }
    for _ in 0..3 {
        reader.submit(&format!("shown={news}&action=save")).await;
        assert!(!reader.is_in(news).await);
        reader.submit(&format!("shown={news}&topic={news}&action=save")).await;
        assert!(reader.is_in(news).await);
        for (form, status) in [("action=leave", "unsubscribed"), ("action=return", "subscribed")] {
            reader.submit(form).await;
            assert_eq!(reader.marketing_status().await, status);
        }
    }
    assert_eq!(reader.count("select count(*) from events where type = 'topic_left'").await, 200);
    assert_eq!(reader.count("select count(*) from events where type = 'resubscribed'").await, 200);
}

#[tokio::test]
async fn coming_back_lifts_nothing_but_the_own_opt_out() {
    let reader = Reader::start().await;
    reader.submit("action=leave").await;
    for reason in ["hard_bounce", "complaint", "manual"] {
        sqlx::query(
            "insert into suppressions (tenant_id, id, address, reason, scope, source)
             select tenant_id, gen_random_uuid(), address, $2, 'all', 'api' from contacts where id = $1",
        )
        .bind(reader.contact)
        .bind(reason)
        .execute(&reader.ready.edge.pool)
        .await
        .unwrap();
    }
    let page = html(&reader.submit("action=return").await);
    assert_eq!(reader.count("select count(*) from suppressions").await, 3);
    assert!(page.contains("for a reason that cannot be changed here"), "{page}");
}

#[rstest]
#[case("")]
#[case("action=delete")]
#[case("action=save&shown=nonsense")]
#[case("action=save&action=leave")]
#[tokio::test]
async fn a_form_that_is_none_of_ours_changes_nothing(#[case] form: &str) {
    let reader = Reader::start().await;
    let news = reader.topic("News", true).await;
    let answer = reader.submit(form).await;
    assert_eq!(answer.status, 400);
    assert!(html(&answer).contains("Nothing was changed") && reader.is_in(news).await);
    assert_eq!(reader.marketing_status().await, "subscribed");
}

#[rstest]
#[case("de-CH, en;q=0.5", "de", "E-Mail-Einstellungen", "Abmelden")]
#[case("fr", "fr", "Préférences e-mail", "Se désabonner")]
#[case("es-MX", "es", "Preferencias de correo", "Darse de baja")]
#[case("ja", "en", "Email preferences", "Unsubscribe")]
#[tokio::test]
async fn the_pages_speak_the_recipients_language(
    #[case] asked: &str,
    #[case] lang: &str,
    #[case] preferences: &str,
    #[case] unsubscribe: &str,
) {
    let reader = Reader::start().await;
    for (purpose, title) in [(Purpose::Preferences, preferences), (Purpose::Unsubscribe, unsubscribe)] {
        let answer = reader.ask(Method::GET, &reader.path(purpose), asked, "").await;
        let page = html(&answer);
        assert!(
            page.contains(&format!("<html lang=\"{lang}\">")) && page.contains(&format!("<h1>{title}</h1>")),
            "{page}"
        );
        assert_eq!((answer.header("content-language"), answer.header("vary")), (lang, "accept-language"));
    }
}

#[tokio::test]
async fn the_unsubscribe_page_offers_topics_only_where_there_are_some() {
    let reader = Reader::start().await;
    let path = reader.path(Purpose::Unsubscribe);
    for (method, form) in [(Method::GET, ""), (Method::POST, "confirm=no")] {
        assert!(!html(&reader.ask(method, &path, "en", form).await).contains("<section>"));
    }
    reader.topic("News", true).await;
    for (method, form) in [(Method::GET, ""), (Method::POST, "confirm=no")] {
        let page = html(&reader.ask(method, &path, "en", form).await);
        assert!(page.contains("Choose topics instead") && page.contains("<a href=\"../p/v1."), "{page}");
    }
}

#[tokio::test]
async fn a_tracked_link_that_was_cut_shows_a_page_in_the_recipients_language() {
    let reader = Reader::start().await;
    let answer = reader.ask(Method::GET, "/t/c/v1.cut", "de", "").await;
    assert_eq!((answer.status.as_u16(), answer.header("content-language")), (404, "de"));
    assert!(html(&answer).contains("<h1>Dieser Link funktioniert nicht</h1>"), "{}", html(&answer));
    assert!(answer.header("cache-control").contains("no-store"));
}

#[tokio::test]
async fn the_tenants_knowledge_of_the_language_counts_where_the_browser_says_nothing() {
    let reader = Reader::start().await;
    sqlx::query("update contacts set locale = 'fr-CA'").execute(&reader.ready.edge.pool).await.unwrap();
    let page = html(&reader.ask(Method::GET, &reader.path(Purpose::Preferences), "", "").await);
    assert!(page.contains("<html lang=\"fr\">"), "{page}");
}

#[tokio::test]
async fn a_token_for_anything_else_opens_no_preferences() {
    let reader = Reader::start().await;
    let (tokens, tenant) = (&reader.ready.edge.ingress.tokens, reader.ready.client.tenant);
    let other = reader.ready.edge.client_for("crm", reader.ready.client.environment, "tenant-2").await;
    let bad = [
        tokens.seal(Purpose::Unsubscribe, tenant, reader.send, b""),
        tokens.seal(Purpose::Open, tenant, reader.send, b""),
        tokens.seal(Purpose::Preferences, other.tenant, reader.send, b""),
        tokens.seal(Purpose::Preferences, tenant, schemas::new_id(), b""),
        "x".to_owned(),
    ];
    for token in &bad {
        for method in [Method::GET, Method::POST] {
            let answer = reader.ask(method.clone(), &format!("/p/{token}"), "en", "action=leave").await;
            assert_eq!(answer.status, 404, "{method} {token}");
        }
    }
    assert_eq!(reader.marketing_status().await, "subscribed");
}

#[tokio::test]
async fn a_preferences_link_works_longer_than_the_ledger_keeps_its_send() {
    let reader = Reader::start().await;
    sqlx::query("update contacts set locale = 'fr'").execute(&reader.ready.edge.pool).await.unwrap();
    let (news, offers) = (reader.topic("News", true).await, reader.topic("Offers", true).await);
    reader.drop_month().await;
    assert!(reader.look().await.contains("All about News"));
    let page = html(&reader.ask(Method::GET, &reader.path(Purpose::Preferences), "", "").await);
    assert!(page.contains("<html lang=\"fr\">"), "{page}");
    let saved = reader.submit(&format!("shown={news}&shown={offers}&topic={offers}&action=save")).await;
    assert!(saved.status == 200 && html(&saved).contains("Your choices are saved"), "{}", html(&saved));
    assert!(!reader.is_in(news).await && reader.is_in(offers).await);
    for _ in 0..2 {
        assert_eq!(reader.submit("action=leave").await.status, 200);
        assert_eq!(reader.marketing_status().await, "unsubscribed");
        assert_eq!(reader.count("select count(*) from suppressions where reason = 'unsubscribe'").await, 1);
    }
    assert_eq!(reader.submit("action=return").await.status, 200);
    assert_eq!(reader.marketing_status().await, "subscribed");
    // The page to leave by leads here with the contact it names.
    let page = html(&reader.ask(Method::GET, &reader.path(Purpose::Unsubscribe), "en", "").await);
    let start = page.find("/p/").unwrap();
    let link = page[start..].split('"').next().unwrap();
    assert_eq!(reader.ask(Method::GET, link, "en", "").await.status, 200);
    // Who was erased has no page.
    sqlx::query("update contacts set status = 'erased', address = 'erased:' || id")
        .execute(&reader.ready.edge.pool)
        .await
        .unwrap();
    assert_eq!(reader.ask(Method::GET, link, "en", "").await.status, 404);
}

#[tokio::test]
async fn an_opt_out_from_a_dropped_month_is_newer_than_an_opt_in_by_a_faster_clock() {
    let reader = Reader::start().await;
    reader.drop_month().await;
    sqlx::query("update contacts set opted_in_at = now() + interval '5 s' where id = $1")
        .bind(reader.contact)
        .execute(&reader.ready.edge.pool)
        .await
        .unwrap();
    let answer = reader.ask(Method::POST, &reader.path(Purpose::Unsubscribe), "en", "confirm=yes").await;
    assert_eq!((answer.status.as_u16(), reader.marketing_status().await.as_str()), (200, "unsubscribed"));
    let own = "select count(*) from suppressions where reason = 'unsubscribe' and source = 'recipient'";
    assert_eq!(reader.count(own).await, 1);
    let noted = "select count(*) from notices where type = 'email.unsubscribed' and occurred_at <= now()";
    assert_eq!(reader.count(noted).await, 1);
}

#[tokio::test]
async fn a_choice_that_cannot_be_stored_is_not_confirmed() {
    let reader = Reader::start().await;
    sqlx::query("revoke all on suppressions from postrider_ingress").execute(&reader.ready.edge.pool).await.unwrap();
    let answer = reader.submit("action=leave").await;
    assert!(answer.status.is_server_error() && !answer.header("retry-after").is_empty(), "{}", answer.status);
    assert!(html(&answer).contains("not yet"));
    assert_eq!(reader.marketing_status().await, "subscribed");
}

#[tokio::test]
async fn the_unsubscribe_page_leads_to_the_preferences_before_and_after() {
    let reader = Reader::start().await;
    reader.topic("News", true).await;
    let path = reader.path(Purpose::Unsubscribe);
    for method in [Method::GET, Method::POST] {
        let page = html(&reader.ask(method, &path, "en", "confirm=yes").await);
        let link = page.split("href=\"../p/").nth(1).unwrap().split('"').next().unwrap().to_owned();
        assert_eq!(reader.ask(Method::GET, &format!("/p/{link}"), "en", "").await.status, 200);
    }
}

#[tokio::test]
async fn only_a_list_can_be_a_topic_and_one_can_cease_to_be() {
    let reader = Reader::start().await;
    let client = &reader.ready.client;
    let tag = client.post("/v1/audiences", json!({"kind": "tag", "name": "vip", "public_name": "VIP"})).await;
    assert_eq!(tag.faults(), [("public_name".to_owned(), "invalid".to_owned())]);
    let nameless = client.post("/v1/audiences", json!({"kind": "list", "name": "x", "public_description": "d"})).await;
    assert_eq!(nameless.faults(), [("public_description".to_owned(), "invalid".to_owned())]);
    let news = reader.topic("News", true).await;
    let path = format!("/v1/audiences/{news}");
    let changed = client.patch(&path, json!({"public_name": "Our news"})).await;
    assert_eq!(changed.body["audience"]["public_name"], "Our news", "{}", changed.body);
    assert!(reader.look().await.contains("Our news"));
    let changed = client.patch(&path, json!({"public_name": null})).await;
    assert_eq!(changed.body["audience"]["public_description"], json!(null), "{}", changed.body);
    assert!(!reader.look().await.contains("Our news"));
    reader.topic("Taken", false).await;
    assert_eq!(client.patch(&path, json!({"name": "Taken"})).await.refusal(), (409, "audience_already_exists"));
    let nobody = client.patch(&format!("/v1/audiences/{}", schemas::new_id()), json!({"name": "x"})).await;
    assert_eq!(nobody.refusal(), (404, "audience_not_found"));
}

#[tokio::test]
async fn the_pages_of_one_link_leave_connections_to_others() {
    let reader = Reader::start().await;
    let mut held = reader.ready.edge.pool.begin().await.unwrap();
    sqlx::query("lock table contacts in access exclusive mode").execute(&mut *held).await.unwrap();
    let paths = [Purpose::Unsubscribe, Purpose::Preferences, Purpose::Confirm].map(|purpose| reader.path(purpose));
    let looks = paths.iter().flat_map(|path| std::iter::repeat_n(path, 10));
    let looks = futures::future::join_all(looks.map(|path| reader.ask(Method::GET, path, "en", "")));
    let others = async {
        reader.ready.edge.until_waiting(1).await;
        let answer = reader.ready.client.get("/v1/audiences").await;
        held.rollback().await.unwrap();
        answer.status.as_u16()
    };
    let (_, answered) = tokio::join!(looks, others);
    assert_eq!(answered, 200);
}
