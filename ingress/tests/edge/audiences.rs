//! `/v1/audiences`

use serde_json::json;

use crate::common::Edge;

#[tokio::test]
async fn members_are_added_and_removed_by_id_and_address() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = client.post("/v1/contacts", json!({"email": "ann@example.com"})).await.text("contact_id");
    client.post("/v1/contacts", json!({"email": "bob@example.com"})).await;
    let list = client.post("/v1/audiences", json!({"kind": "list", "name": " News ", "description": "x"})).await;
    assert_eq!((list.status.as_u16(), &list.body["name"]), (201, &json!("News")));
    let path = format!("/v1/audiences/{}", list.text("audience_id"));
    let members = format!("{path}/members");
    let missing = schemas::new_id().to_string();

    let added = client.post(&members, json!({"add": [ann, "BOB@example.com", "nobody@example.com", missing]})).await;
    assert_eq!((added.body["added"].as_i64(), added.body["removed"].as_i64()), (Some(2), Some(0)), "{}", added.body);
    assert_eq!(added.body["not_found"], json!(["nobody@example.com", missing]));
    let again = client.post(&members, json!({"add": ["ann@example.com"], "remove": ["bob@example.com"]})).await;
    assert_eq!((again.body["added"].as_i64(), again.body["removed"].as_i64()), (Some(0), Some(1)));
    let audience = client.get(&path).await;
    assert_eq!(audience.body["audience"]["member_count"], 1);
    assert_eq!(audience.body["audience"]["kind"], "list");
}

#[tokio::test]
async fn a_name_with_an_accent_is_one_name_however_it_is_written() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (composed, decomposed) = ("Caf\u{e9}", "Cafe\u{301}");
    for kind in ["list", "tag"] {
        let made = client.post("/v1/audiences", json!({"kind": kind, "name": decomposed})).await;
        assert_eq!((made.status.as_u16(), &made.body["name"]), (201, &json!(composed)));
        let again = client.post("/v1/audiences", json!({"kind": kind, "name": composed})).await;
        assert_eq!(again.status, 409, "{}", again.body);
        let other = client.post("/v1/audiences", json!({"kind": kind, "name": "Bar"})).await.text("audience_id");
        let renamed = client.patch(&format!("/v1/audiences/{other}"), json!({"name": decomposed})).await;
        assert_eq!(renamed.status, 409, "{}", renamed.body);
    }
    client.post("/v1/contacts", json!({"email": "ann@example.com", "tags": [decomposed], "lists": [decomposed]})).await;
    let csv = format!("email,tags,list\nbob@example.com,{decomposed},{decomposed}\n");
    assert_eq!(client.post("/v1/imports", json!({"csv": csv})).await.status, 200);
    assert_eq!(edge.count("select count(*) from audiences where name like 'Caf%'").await, 2);
    assert_eq!(edge.count("select count(*) from audience_members").await, 4);
}

#[tokio::test]
async fn what_is_neither_id_nor_address_is_a_fault_at_its_place() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let list = client.post("/v1/audiences", json!({"kind": "list", "name": "News"})).await.text("audience_id");
    let members = format!("/v1/audiences/{list}/members");
    let answer = client.post(&members, json!({"add": ["ann@example.com", "?"], "remove": ["!"]})).await;
    let expected = [("add[1]", "invalid"), ("remove[0]", "invalid")];
    assert_eq!(answer.faults(), expected.map(|(path, code)| (path.to_owned(), code.to_owned())));
    let many: Vec<String> = (0..1001).map(|number| format!("p{number}@example.com")).collect();
    assert_eq!(client.post(&members, json!({"add": many})).await.faults()[0].1, "too_many");
}

#[tokio::test]
async fn a_name_is_used_once_per_kind() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let make = |kind: &'static str| {
        let client = client.clone();
        async move { client.post("/v1/audiences", json!({"kind": kind, "name": "News"})).await.refusal().0 }
    };
    assert_eq!((make("list").await, make("tag").await, make("list").await), (201, 201, 409));
    assert_eq!(client.post("/v1/audiences", json!({"kind": "crowd", "name": "x"})).await.faults()[0].1, "not_allowed");
    assert_eq!(client.post("/v1/audiences", json!({"kind": "list", "name": " "})).await.faults()[0].1, "empty");
}

#[tokio::test]
async fn of_two_changes_at_once_neither_undoes_the_other() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let list = client.post("/v1/audiences", json!({"kind": "list", "name": "News"})).await.text("audience_id");
    let path = format!("/v1/audiences/{list}");
    let mut other = edge.pool.begin().await.unwrap();
    sqlx::query("update audiences set description = 'Weekly'").execute(&mut *other).await.unwrap();
    let renaming = tokio::spawn({
        let (client, path) = (client.clone(), path.clone());
        async move { client.patch(&path, json!({"name": "Letter"})).await.status.as_u16() }
    });
    edge.until_waiting(1).await;
    other.commit().await.unwrap();
    assert_eq!(renaming.await.unwrap(), 200);
    let audience = client.get(&path).await.body["audience"].clone();
    assert_eq!((&audience["name"], &audience["description"]), (&json!("Letter"), &json!("Weekly")));
}

#[tokio::test]
async fn an_erasure_waits_for_a_change_of_members_and_leaves_none() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/audiences", json!({"kind": "list", "name": "Offers"})).await;
    let ann = client.post("/v1/contacts", json!({"email": "ann@example.com", "lists": ["News"]})).await;
    let ann = ann.text("contact_id");
    // What a change of members does: it holds the contact, and writes afterwards.
    let mut change = edge.pool.begin().await.unwrap();
    let hold = sqlx::query("select from contacts where id = $1::uuid for key share").bind(&ann);
    hold.execute(&mut *change).await.unwrap();
    let changing = async {
        edge.until_waiting(1).await;
        for sql in [
            "delete from audience_members where contact_id = $1::uuid",
            "insert into audience_members (tenant_id, audience_id, contact_id)
             select tenant_id, id, $1::uuid from audiences where name = 'Offers'",
        ] {
            sqlx::query(sql).bind(&ann).execute(&mut *change).await.expect("a deadlock");
        }
        change.commit().await.unwrap();
    };
    let path = format!("/v1/contacts/{ann}");
    let (erased, ()) = tokio::join!(client.delete(&path, json!({"erase": true})), changing);
    assert_eq!(erased.status, 200, "{}", erased.body);
    assert_eq!(edge.count("select count(*) from audience_members").await, 0);
}
