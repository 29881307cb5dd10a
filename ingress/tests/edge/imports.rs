//! `/v1/imports`

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::common::{Answer, Client, Edge, settings};

const PATH: &str = "/v1/imports";

async fn import(client: &Client, operation: &str, csv: &str) -> Answer {
    let answer = client.post(PATH, json!({"csv": csv, "operation": operation})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

/// The counts that are not zero.
fn counts(answer: &Answer) -> Value {
    let all = answer.body["counts"].as_object().unwrap().clone();
    all.into_iter().filter(|(_, count)| *count != json!(0)).collect::<serde_json::Map<_, _>>().into()
}

async fn contact(client: &Client, address: &str) -> Value {
    client.get(&format!("/v1/contacts?email={address}")).await.body["contacts"][0].clone()
}

#[tokio::test]
async fn an_upsert_creates_updates_and_leaves_alone() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/fields", json!({"key": "plan", "label": "Plan", "type": "string"})).await;
    client.post("/v1/contacts", json!({"email": "old@example.com", "first_name": "Old", "last_name": "Name"})).await;
    client.post("/v1/contacts", json!({"email": "same@example.com", "first_name": "Same"})).await;
    let csv = "E-Mail,First Name,last_name,Plan,Tags,List,DOT-Number,Shoe size\n\
               new@example.com,New,,pro,\"a; b\",News,42,39\n\
               OLD@example.com,Older,,,a,,,\n\
               same@example.com,Same,,,,,,\n";
    let answer = client
        .post(
            PATH,
            json!({"csv": csv, "name": "June", "source_slug": "crm_sync", "compliance": {"consent_basis": "contract"}}),
        )
        .await;
    assert_eq!(answer.body["status"], "completed", "{}", answer.body);
    assert_eq!(counts(&answer), json!({"total_rows": 3, "valid": 3, "created": 1, "updated": 2}));
    assert_eq!((&answer.body["ignored_columns"], &answer.body["operation"]), (&json!(["Shoe size"]), &json!("upsert")));
    let new = contact(&client, "new@example.com").await;
    assert_eq!(
        (&new["first_name"], &new["fields"], &new["dot_number"]),
        (&json!("New"), &json!({"plan": "pro"}), &json!(42))
    );
    assert_eq!((&new["source"], &new["consent"]["basis"]), (&json!("crm_sync"), &json!("contract")));
    assert_eq!((new["tags"].as_array().unwrap().len(), &new["lists"][0]["name"]), (2, &json!("News")));
    let old = contact(&client, "old@example.com").await;
    assert_eq!(
        (&old["first_name"], &old["last_name"]),
        (&json!("Older"), &json!("Name")),
        "an empty cell leaves the value"
    );

    let again = client.post(PATH, json!({"csv": csv, "compliance": {"consent_basis": "contract"}})).await;
    assert_eq!(counts(&again), json!({"total_rows": 3, "valid": 3, "unchanged": 3}));

    let stored = client.get(&format!("{PATH}/{}", answer.text("import_id"))).await;
    assert_eq!(stored.body["import"]["counts"], answer.body["counts"]);
    assert_eq!(
        (&stored.body["import"]["name"], &stored.body["import"]["status"]),
        (&json!("June"), &json!("completed"))
    );
}

#[tokio::test]
async fn a_list_in_a_row_replaces_the_list_of_the_contact() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/fields", json!({"key": "langs", "label": "Langs", "type": "string_list"})).await;
    client.post("/v1/contacts", json!({"email": "ann@example.com", "fields": {"langs": ["de", "en"]}})).await;
    for (cell, langs, change) in [
        ("de;en", json!(["de", "en"]), "unchanged"),
        ("en;de", json!(["en", "de"]), "updated"),
        ("de", json!(["de"]), "updated"),
        ("de;de", json!(["de", "de"]), "updated"),
        ("", json!(["de", "de"]), "unchanged"),
    ] {
        let answer = import(&client, "upsert", &format!("email,langs\nann@example.com,{cell}\n")).await;
        let mut expected = json!({"total_rows": 1, "valid": 1});
        expected[change] = json!(1);
        assert_eq!(counts(&answer), expected, "{cell}");
        assert_eq!(contact(&client, "ann@example.com").await["fields"], json!({"langs": langs}), "{cell}");
    }
}

#[tokio::test]
async fn create_skips_the_known_and_update_the_new() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/contacts", json!({"email": "old@example.com", "first_name": "Old"})).await;
    let csv = "email,first_name,list\nold@example.com,X,News\nnew@example.com,New,News\n";
    let created = import(&client, "create", csv).await;
    assert_eq!(counts(&created), json!({"total_rows": 2, "valid": 2, "created": 1, "skipped": 1}));
    let old = contact(&client, "old@example.com").await;
    assert_eq!((&old["first_name"], &old["lists"]), (&json!("Old"), &json!([])));
    let updated = import(&client, "update", "email,first_name\nold@example.com,Y\nother@example.com,Z\n").await;
    assert_eq!(counts(&updated), json!({"total_rows": 2, "valid": 2, "updated": 1, "skipped": 1}));
    assert_eq!(contact(&client, "old@example.com").await["first_name"], "Y");
    assert_eq!(contact(&client, "other@example.com").await, Value::Null);
}

#[tokio::test]
async fn an_archived_contact_comes_back_with_the_import_that_updates_it() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = client.post("/v1/contacts", json!({"email": "old@example.com", "first_name": "Old"})).await;
    client.delete(&format!("/v1/contacts/{}", id.text("contact_id")), json!({})).await;
    let csv = "email,first_name\nold@example.com,Old\n";
    let active = "select count(*) from contacts where status = 'active'";
    for operation in ["create", "audience_only"] {
        import(&client, operation, csv).await;
        assert_eq!(edge.count(active).await, 0, "{operation}");
    }
    assert_eq!(counts(&import(&client, "upsert", csv).await), json!({"total_rows": 1, "valid": 1, "updated": 1}));
    assert_eq!(edge.count(active).await, 1);
    assert_eq!(counts(&import(&client, "upsert", csv).await), json!({"total_rows": 1, "valid": 1, "unchanged": 1}));
}

#[tokio::test]
async fn create_applies_the_opt_outs_of_the_known_and_nothing_else() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for address in ["leaves@example.com", "stays@example.com"] {
        client.post("/v1/contacts", json!({"email": address, "first_name": "Old"})).await;
    }
    let csv = "email,first_name,list,unsubscribed\nleaves@example.com,X,News,yes\nstays@example.com,X,News,no\n\
               new@example.com,New,News,yes\n";
    let answer = import(&client, "create", csv).await;
    assert_eq!(counts(&answer), json!({"total_rows": 3, "valid": 3, "created": 1, "updated": 1, "skipped": 1}));
    let leaves = contact(&client, "leaves@example.com").await;
    assert_eq!(
        (&leaves["marketing_status"], &leaves["first_name"], &leaves["lists"]),
        (&json!("unsubscribed"), &json!("Old"), &json!([]))
    );
    assert_eq!(contact(&client, "stays@example.com").await["marketing_status"], "subscribed");
    assert_eq!(contact(&client, "new@example.com").await["marketing_status"], "unsubscribed");
}

#[tokio::test]
async fn a_report_quotes_no_address() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let csv = "email,dot_number,eve@example.com\nann@example.com.,,\nbob@example.com,cid@example.com,\n\
               dan@example.com,\"a\r\nBcc: x\",\n";
    let answer = import(&client, "upsert", csv).await;
    assert_eq!(counts(&answer), json!({"total_rows": 3, "invalid": 3}));
    let codes: Vec<&str> =
        answer.body["errors"].as_array().unwrap().iter().map(|error| error["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["bad_domain", "not_a_positive_integer", "control_character"]);
    let stored = client.get(&format!("{PATH}/{}", answer.text("import_id"))).await;
    for body in [&answer.body, &stored.body] {
        assert!(!body.to_string().contains('@'), "{body}");
    }
}

#[tokio::test]
async fn a_body_of_commas_is_refused_with_its_line() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let answer = client.post(PATH, json!({"csv": ",".repeat(31 * 1024 * 1024)})).await;
    assert_eq!(answer.faults(), vec![("csv".to_owned(), "too_many_columns".to_owned())]);
    assert!(answer.text("detail").contains("line 1"), "{}", answer.body);
}

#[tokio::test]
async fn audience_only_touches_lists_and_tags_of_the_known() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/contacts", json!({"email": "old@example.com", "first_name": "Old"})).await;
    // The cell of a column that is not read is no fault.
    let csv = "email,first_name,timezone,list\nold@example.com,X,Mars,News\nnew@example.com,New,,News\n";
    let answer = import(&client, "audience_only", csv).await;
    assert_eq!(answer.body["ignored_columns"], json!(["first_name", "timezone"]));
    assert_eq!(counts(&answer), json!({"total_rows": 2, "valid": 2, "updated": 1, "skipped": 1}));
    let old = contact(&client, "old@example.com").await;
    assert_eq!((&old["first_name"], &old["lists"][0]["name"]), (&json!("Old"), &json!("News")));
    assert_eq!(edge.count("select count(*) from contacts").await, 1);
}

#[tokio::test]
async fn an_import_of_audiences_applies_what_stops_mail() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for address in ["leaves@example.com", "complains@example.com"] {
        client.post("/v1/contacts", json!({"email": address})).await;
    }
    let csv = "email,list,unsubscribed,suppression_reason\nleaves@example.com,News,yes,\n\
               complains@example.com,,,complaint\nunknown@example.com,,,manual\n";
    let answer = import(&client, "audience_only", csv).await;
    let expected = json!({"total_rows": 3, "valid": 3, "updated": 1, "unchanged": 1, "skipped": 1, "suppressed": 2});
    assert_eq!((counts(&answer), &answer.body["ignored_columns"]), (expected, &json!([])));
    let leaves = contact(&client, "leaves@example.com").await;
    assert_eq!((&leaves["marketing_status"], &leaves["lists"][0]["name"]), (&json!("unsubscribed"), &json!("News")));
    assert_eq!(contact(&client, "complains@example.com").await["suppression"]["reason"], "complaint");
    assert_eq!(edge.count("select count(*) from suppressions where address = 'unknown@example.com'").await, 1);
}

#[tokio::test]
async fn verification_only_writes_nothing() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/suppressions", json!({"email": "held@example.com"})).await;
    let csv = "email,list,suppression_reason\nnew@example.com,News,manual\nheld@example.com,,\nnobody,,\n";
    let answer = import(&client, "verification_only", csv).await;
    assert_eq!(counts(&answer), json!({"total_rows": 3, "valid": 2, "invalid": 1, "suppressed": 1}));
    assert_eq!(answer.body["status"], "completed_with_errors");
    for table in ["select count(*) from contacts", "select count(*) from audiences"] {
        assert_eq!(edge.count(table).await, 0, "{table}");
    }
    assert_eq!(edge.count("select count(*) from suppressions").await, 1);
}

#[tokio::test]
async fn a_check_of_bad_rows_alone_fails() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let bad = "email,timezone,unsubscribed\nann@example.com,Mars,yes\n";
    for (csv, status) in [(bad.to_owned(), "failed"), (format!("{bad}bob@example.com,,\n"), "completed_with_errors")] {
        let answer = import(&client, "verification_only", &csv).await;
        assert_eq!(answer.body["status"], status, "{}", answer.body);
    }
    let applied = import(&client, "upsert", bad).await;
    assert_eq!(applied.body["status"], "completed_with_errors", "{}", applied.body);
}

#[tokio::test]
async fn a_suppression_import_suppresses_and_makes_no_contacts() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/suppressions", json!({"email": "held@example.com", "reason": "import"})).await;
    let csv = "email,suppression_reason,unsubscribed\n\
               a@example.com,,\nb@example.com,hard_bounce,\nc@example.com,,yes\nheld@example.com,,\n";
    let answer = import(&client, "suppression_import", csv).await;
    assert_eq!(counts(&answer), json!({"total_rows": 4, "valid": 4, "created": 3, "unchanged": 1, "suppressed": 4}));
    assert_eq!(edge.count("select count(*) from contacts").await, 0);
    let rows: Vec<(String, String, String)> =
        sqlx::query_as("select address, reason, scope from suppressions order by address")
            .fetch_all(&edge.pool)
            .await
            .unwrap();
    let rows: Vec<_> =
        rows.iter().map(|(address, reason, scope)| (&address[..1], reason.as_str(), scope.as_str())).collect();
    assert_eq!(
        rows,
        [
            ("a", "import", "all"),
            ("b", "hard_bounce", "all"),
            ("c", "unsubscribe", "marketing"),
            ("h", "import", "all")
        ]
    );
}

#[tokio::test]
async fn an_import_never_lifts_a_suppression_or_an_opt_out() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/contacts", json!({"email": "left@example.com", "marketing_status": "unsubscribed"})).await;
    client.post("/v1/contacts", json!({"email": "pending@example.com", "marketing_status": "pending"})).await;
    client.post("/v1/suppressions", json!({"email": "held@example.com", "reason": "complaint"})).await;
    let csv = "email,unsubscribed\nleft@example.com,no\nheld@example.com,no\npending@example.com,no\nleaves@example.com,yes\n";
    let compliance = json!({"marketing_allowed": true, "consent_basis": "opt_in", "source_description": "The fair"});
    let answer = client.post(PATH, json!({"csv": csv, "source_slug": "fair", "compliance": compliance})).await;
    assert_eq!(answer.body["counts"]["suppressed"], 1, "{}", answer.body);
    let status = |address: &'static str| {
        let client = client.clone();
        async move { contact(&client, address).await["marketing_status"].as_str().unwrap().to_owned() }
    };
    assert_eq!(status("left@example.com").await, "unsubscribed");
    assert_eq!(status("leaves@example.com").await, "unsubscribed");
    assert_eq!(status("pending@example.com").await, "subscribed", "an agreement that was not given yet is given now");
    let consent = contact(&client, "pending@example.com").await["consent"].clone();
    assert_eq!(
        (&consent["basis"], &consent["source"], &consent["description"]),
        (&json!("opt_in"), &json!("fair"), &json!("The fair")),
        "the import is the evidence"
    );
    assert_eq!(contact(&client, "held@example.com").await["suppression"]["reason"], "complaint");
    client.post(PATH, json!({"csv": "email\nx@example.com\n", "compliance": {"marketing_allowed": false}})).await;
    assert_eq!(status("x@example.com").await, "pending");
}

#[tokio::test]
async fn bad_rows_are_reported_and_skipped_and_the_last_duplicate_wins() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let csv = "\u{feff}email;first_name;timezone\r\n\
               ann@example.com;Ann;\r\n\
               nobody;Bob;\r\n\
               \"cid@example.com\";\"Cid; the first\";Mars\r\n\
               ANN@example.com;Anna;Europe/Paris\r\n\
               dan@example.com;Dan;;too many\r\n";
    let answer = import(&client, "upsert", csv).await;
    assert_eq!(answer.body["status"], "completed_with_errors");
    assert_eq!(counts(&answer), json!({"total_rows": 5, "valid": 1, "created": 1, "duplicates": 1, "invalid": 3}));
    assert_eq!(
        answer.body["errors"],
        json!([
            {"row": 3, "column": "email", "code": "missing_at", "value": "nobody"},
            {"row": 4, "column": "timezone", "code": "unknown_timezone", "value": "Mars"},
            {"row": 6, "column": "", "code": "too_many_cells", "value": ""},
        ])
    );
    assert_eq!(contact(&client, "ann@example.com").await["first_name"], "Anna");
    let failed = import(&client, "upsert", "email\nnobody\n").await;
    assert_eq!(failed.body["status"], "failed");
    let empty = import(&client, "upsert", "email\n").await;
    assert_eq!((empty.body["status"].as_str(), counts(&empty)), (Some("completed"), json!({})));
}

#[tokio::test]
async fn an_opt_out_in_any_row_of_an_address_counts() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let csv = "email,first_name,unsubscribed,suppression_reason\n\
               ann@example.com,A,yes,\nbob@example.com,B,,hard_bounce\ncid@example.com,C,,manual\n\
               ANN@example.com,Ann,no,\nbob@example.com,Bob,,unsubscribe\ncid@example.com,Cid,,\ndan@example.com,Dan,,\n";
    let answer = import(&client, "upsert", csv).await;
    let expected = json!({"total_rows": 7, "valid": 4, "created": 4, "duplicates": 3, "suppressed": 2});
    assert_eq!(counts(&answer), expected);
    for (address, name, status, reason) in [
        ("ann@example.com", "Ann", "unsubscribed", Value::Null),
        ("bob@example.com", "Bob", "unsubscribed", json!("hard_bounce")),
        ("cid@example.com", "Cid", "subscribed", json!("manual")),
        ("dan@example.com", "Dan", "subscribed", Value::Null),
    ] {
        let contact = contact(&client, address).await;
        let found = (&contact["first_name"], &contact["marketing_status"], &contact["suppression"]["reason"]);
        assert_eq!(found, (&json!(name), &json!(status), &reason), "{address}");
    }
}

#[rstest]
#[case("upsert")]
#[case("create")]
#[case("audience_only")]
#[tokio::test]
async fn what_stops_mail_counts_beside_a_bad_cell(#[case] operation: &str) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for address in ["ann@example.com", "bob@example.com", "cid@example.com"] {
        client.post("/v1/contacts", json!({"email": address, "company": "Acme"})).await;
    }
    client.post("/v1/contacts", json!({"email": "dan@example.com"})).await;
    let archived = contact(&client, "dan@example.com").await["contact_id"].as_str().unwrap().to_owned();
    client.delete(&format!("/v1/contacts/{archived}"), json!({})).await;
    let bad = "x".repeat(101);
    let csv = format!(
        "email,company,tags,unsubscribed,suppression_reason\nann@example.com,Other,{bad},yes,\n\
         bob@example.com,Other,{bad},,complaint\ncid@example.com,Other,{bad},no,\ndan@example.com,,{bad},,manual\n"
    );
    let answer = import(&client, operation, &csv).await;
    assert_eq!(answer.body["status"], "completed_with_errors", "{}", answer.body);
    assert_eq!((&answer.body["counts"]["invalid"], &answer.body["counts"]["valid"]), (&json!(4), &json!(0)));
    for (address, status, reason) in [
        ("ann@example.com", "unsubscribed", Value::Null),
        ("bob@example.com", "subscribed", json!("complaint")),
        ("cid@example.com", "subscribed", Value::Null),
    ] {
        let contact = contact(&client, address).await;
        let found = (&contact["marketing_status"], &contact["suppression"]["reason"], &contact["company"]);
        assert_eq!(found, (&json!(status), &reason, &json!("Acme")), "{address}");
    }
    assert_eq!(edge.count("select count(*) from contacts where status = 'archived'").await, 1);
    assert_eq!(edge.count("select count(*) from suppressions where reason = 'manual'").await, 1);
}

#[tokio::test]
async fn an_opt_out_in_a_bad_row_counts_beside_good_ones() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for (address, rows) in [("ann@example.com", ["A,Mars,yes", "B,,"]), ("bob@example.com", ["B,,", "A,Mars,yes"])] {
        let csv = format!("email,first_name,timezone,unsubscribed\n{address},{}\n{address},{}\n", rows[0], rows[1]);
        let answer = import(&client, "upsert", &csv).await;
        assert_eq!(counts(&answer), json!({"total_rows": 2, "valid": 1, "created": 1, "invalid": 1}));
        let contact = contact(&client, address).await;
        assert_eq!((&contact["first_name"], &contact["marketing_status"]), (&json!("B"), &json!("unsubscribed")));
    }
}

#[tokio::test]
async fn pending_in_a_bad_row_takes_subscribed_back() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/contacts", json!({"email": "bob@example.com", "external_id": "1"})).await;
    for name in ["ann", "cid", "dan", "eve"] {
        client.post("/v1/contacts", json!({"email": format!("{name}@example.com")})).await;
    }
    let bad = "1".repeat(300);
    let csv = format!(
        "email,marketing_status,external_id,phone\n\
         ann@example.com,pending,,{bad}\nbob@example.com,pending,9,\n\
         cid@example.com,pending,,{bad}\ncid@example.com,,,2\n\
         dan@example.com,,,3\ndan@example.com,pending,,{bad}\neve@example.com,,,{bad}\n"
    );
    let answer = import(&client, "upsert", &csv).await;
    assert_eq!(counts(&answer), json!({"total_rows": 7, "valid": 2, "updated": 4, "invalid": 5}), "{}", answer.body);
    for (name, status, phone) in [
        ("ann", "pending", Value::Null),
        ("bob", "pending", Value::Null),
        ("cid", "pending", json!("2")),
        ("dan", "pending", json!("3")),
        ("eve", "subscribed", Value::Null),
    ] {
        let contact = contact(&client, &format!("{name}@example.com")).await;
        assert_eq!((&contact["marketing_status"], &contact["phone"]), (&json!(status), &phone), "{name}");
    }
}

#[tokio::test]
async fn a_contact_that_a_bad_row_creates_has_agreed_to_nothing() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let bad = "1".repeat(300);
    let csv = format!(
        "email,marketing_status,suppression_reason,consent_at,phone\nann@example.com,,manual,2026-01-02,{bad}\n\
         bob@example.com,unsubscribed,,,{bad}\ncid@example.com,,,,\ndan@example.com,pending,,,{bad}\n"
    );
    let compliance = json!({"marketing_allowed": true, "consent_basis": "opt_in", "source_description": "The fair"});
    let answer = client.post(PATH, json!({"csv": csv, "compliance": compliance})).await;
    let expected = json!({"total_rows": 4, "valid": 1, "created": 4, "invalid": 3, "suppressed": 1});
    assert_eq!(counts(&answer), expected, "{}", answer.body);
    for (name, status, is_stated) in [
        ("ann", "pending", false),
        ("bob", "unsubscribed", false),
        ("cid", "subscribed", true),
        ("dan", "pending", false),
    ] {
        let contact = contact(&client, &format!("{name}@example.com")).await;
        assert_eq!(contact["marketing_status"], status, "{name}");
        for part in ["basis", "at", "source", "description"] {
            assert_eq!(!contact["consent"][part].is_null(), is_stated, "{name}: {part}");
        }
    }
    let body = json!({"csv": format!("{csv}eve@example.com,,,,\n"), "compliance": {"require_verification": true}});
    let answer = client.post(PATH, body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(edge.count("select count(*) from confirmations").await, 1, "only the good row's contact is asked");
}

#[tokio::test]
async fn at_most_a_hundred_errors_are_shown_and_all_are_counted() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let answer = import(&client, "upsert", &format!("email\n{}", "nobody\n".repeat(150))).await;
    assert_eq!(
        (answer.body["counts"]["invalid"].as_i64(), answer.body["errors"].as_array().unwrap().len()),
        (Some(150), 100)
    );
}

#[rstest]
#[case::unterminated("email,name\nann@example.com,\"Ann\nbob@example.com,Bob\n", "unterminated_quote", "line 2")]
#[case::no_email("name,phone\nx,y\n", "missing_column", "line 1")]
#[case::twice("email,Mail\na@b.co,c@d.co\n", "duplicate_header", "line 1")]
#[case::empty("", "empty", "line 1")]
#[tokio::test]
async fn a_file_that_cannot_be_meant_is_refused_with_the_line(
    #[case] csv: &str,
    #[case] code: &str,
    #[case] line: &str,
) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let answer = client.post(PATH, json!({"csv": csv})).await;
    assert_eq!(
        (answer.refusal(), answer.faults()),
        ((400, "validation_failed"), vec![("csv".to_owned(), code.to_owned())])
    );
    assert!(answer.text("detail").contains(line), "{}", answer.body);
    assert_eq!(edge.count("select count(*) from imports").await, 0);
}

#[tokio::test]
async fn the_ceiling_is_a_setting() {
    let mut settings = settings();
    settings.import_max_rows = 2;
    let edge = Edge::with(settings).await;
    let client = edge.client().await;
    assert_eq!(client.post(PATH, json!({"csv": "email\na@b.co\nc@d.co\n"})).await.status, 200);
    assert_eq!(
        client.post(PATH, json!({"csv": "email\na@b.co\nc@d.co\ne@f.co\n"})).await.refusal(),
        (413, "too_many_rows")
    );
}

#[tokio::test]
async fn imports_of_the_same_people_at_once_agree() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let line = |number: usize| format!("p{number}@example.com,N{number},all\n");
    let forward = format!("email,first_name,tags\n{}", (0..500).map(line).collect::<String>());
    let backward = format!("email,first_name,tags\n{}", (0..500).rev().map(line).collect::<String>());
    let answers = futures::future::join_all((0..4).map(|number| {
        let (client, csv) = (client.clone(), if number % 2 == 0 { forward.clone() } else { backward.clone() });
        async move { client.post(PATH, json!({"csv": csv})).await }
    }))
    .await;
    for answer in &answers {
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let created: i64 = answers.iter().map(|answer| answer.body["counts"]["created"].as_i64().unwrap()).sum();
    assert_eq!(created, 500);
    assert_eq!(edge.count("select count(*) from contacts").await, 500);
    assert_eq!(edge.count("select count(*) from audience_members").await, 500);
}

#[tokio::test]
async fn imports_leave_their_tenant_a_turn_for_its_other_writes() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    import(&client, "upsert", "email\nann@example.com\n").await;
    let mut lock = edge.pool.begin().await.unwrap();
    sqlx::query("select from contacts for no key update").execute(&mut *lock).await.unwrap();
    let imports =
        futures::future::join_all((0..5).map(|_| import(&client, "upsert", "email,first_name\nann@example.com,Ann\n")));
    let others = async {
        edge.until_waiting(3).await;
        let suppression = json!({"email": "bob@example.com", "reason": "manual"});
        let made = tokio::time::timeout(Duration::from_secs(8), client.post("/v1/suppressions", suppression)).await;
        lock.rollback().await.unwrap();
        assert!(made.unwrap().status.is_success());
    };
    tokio::join!(imports, others);
}

#[tokio::test]
async fn the_removal_of_a_list_waits_for_an_import_that_names_it() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = client.post("/v1/contacts", json!({"email": "ann@example.com"})).await.text("contact_id");
    let list = client.post("/v1/audiences", json!({"kind": "list", "name": "News"})).await.text("audience_id");
    // The import waits for this membership, and has the list by then.
    let mut joining = edge.pool.begin().await.unwrap();
    sqlx::query("insert into audience_members (tenant_id, audience_id, contact_id) values ($1, $2::uuid, $3::uuid)")
        .bind(client.tenant)
        .bind(&list)
        .bind(&ann)
        .execute(&mut *joining)
        .await
        .unwrap();
    let removing = async {
        edge.until_waiting(1).await;
        let path = format!("/v1/audiences/{list}");
        let left = async {
            edge.until_waiting(2).await;
            joining.rollback().await.unwrap();
        };
        tokio::join!(client.delete(&path, json!({})), left).0
    };
    let (_, removed) = tokio::join!(import(&client, "upsert", "email,list\nann@example.com,News\n"), removing);
    assert_eq!((removed.status.as_u16(), &removed.body["members"]), (200, &json!(1)), "{}", removed.body);
    assert_eq!(edge.count("select count(*) from audience_members").await, 1);
}

/// Bad rows take as long to read as good ones, and Postgres has nothing to do for them.
#[tokio::test(flavor = "multi_thread")]
async fn others_are_served_on_the_only_connection_while_files_are_read() {
    const FILES: usize = 12;
    let edge = Edge::with_connections(settings(), 1).await;
    let client = edge.client().await;
    let row = format!("nobody{}\n", ",x".repeat(100));
    let csv = format!("email{}\n{}", (0..100).map(|n| format!(",n{n}")).collect::<String>(), row.repeat(4_500));
    let files = (0..FILES).map(|_| client.post(PATH, json!({"csv": csv})));
    let mut others = 0;
    let served = async {
        loop {
            let contact = json!({"email": format!("p{others}@example.com")});
            assert_eq!(client.post("/v1/contacts", contact).await.status, 201);
            others += 1;
        }
    };
    tokio::select! {
        answers = futures::future::join_all(files) => {
            assert!(answers.iter().all(|answer| counts(answer) == json!({"total_rows": 4_500, "invalid": 4_500})));
        }
        () = served => {}
    }
    assert!(others > FILES / 2, "{others} others were served while {FILES} files were read");
}

#[tokio::test]
#[allow(clippy::print_stdout)]
async fn fifty_thousand_rows_are_one_request() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let mut csv = String::from("email,first_name,last_name,company,tags,list,timezone\n");
    for number in 0..50_000 {
        csv.push_str(&format!(
            "person{number}@example.com,First{number},Last{number},Company {},a;b,News,Europe/Paris\n",
            number % 100
        ));
    }
    for round in ["new", "again"] {
        let begun = Instant::now();
        let answer = client.post(PATH, json!({"csv": csv})).await;
        println!(
            "50,000 rows ({round}): {} ms, of which ours {}",
            begun.elapsed().as_millis(),
            answer.body["duration_ms"]
        );
        assert_eq!(answer.body["counts"]["valid"], 50_000, "{}", answer.body);
    }
    assert_eq!(edge.count("select count(*) from audience_members").await, 150_000);
}

#[tokio::test]
async fn an_external_id_of_another_contact_is_a_bad_row() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/contacts", json!({"email": "old@example.com", "external_id": "1"})).await;
    client.post("/v1/contacts", json!({"email": "bare@example.com"})).await;
    let csv = "email,external_id\n\
               old@example.com,1\nbare@example.com,2\nnew@example.com,3\n\
               taker@example.com,1\nold@example.com,9\nsecond@example.com,3\nplain@example.com,\n";
    let checked = import(&client, "verification_only", csv).await;
    let answer = import(&client, "upsert", csv).await;
    assert_eq!(checked.body["errors"], answer.body["errors"]);
    let errors: Vec<_> =
        answer.body["errors"].as_array().unwrap().iter().map(|one| (&one["row"], &one["code"])).collect();
    let expected = [(5, "external_id_taken"), (6, "external_id_differs"), (7, "external_id_taken")];
    assert_eq!(
        errors,
        expected.map(|(row, code)| (json!(row), json!(code))).iter().map(|(a, b)| (a, b)).collect::<Vec<_>>()
    );
    // The second row of old@example.com took the place of the first, and is a bad one.
    let expected = json!({"total_rows": 7, "valid": 3, "created": 2, "updated": 1, "duplicates": 1, "invalid": 3});
    assert_eq!(counts(&answer), expected);
    for (address, id) in
        [("old@example.com", json!("1")), ("bare@example.com", json!("2")), ("new@example.com", json!("3"))]
    {
        assert_eq!(contact(&client, address).await["external_id"], id, "{address}");
    }
    assert_eq!(contact(&client, "taker@example.com").await, Value::Null);
}

#[tokio::test]
async fn a_row_with_a_wrong_external_id_still_stops_mail() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/contacts", json!({"email": "ann@example.com", "external_id": "1", "first_name": "Ann"})).await;
    let csv = "email,external_id,first_name,list,unsubscribed,suppression_reason\n\
               ann@example.com,9,Eve,News,yes,\nbob@example.com,1,Bob,News,,manual\ncid@example.com,1,Cid,News,,\n";
    let answer = import(&client, "upsert", csv).await;
    assert_eq!(answer.body["status"], "completed_with_errors", "{}", answer.body);
    let expected = json!({"total_rows": 3, "created": 1, "updated": 1, "invalid": 3, "suppressed": 1});
    assert_eq!(counts(&answer), expected);
    let ann = contact(&client, "ann@example.com").await;
    assert_eq!(
        (&ann["marketing_status"], &ann["external_id"], &ann["first_name"], &ann["lists"]),
        (&json!("unsubscribed"), &json!("1"), &json!("Ann"), &json!([]))
    );
    let bob = contact(&client, "bob@example.com").await;
    assert_eq!((&bob["suppression"]["reason"], &bob["first_name"]), (&json!("manual"), &Value::Null));
    assert_eq!(contact(&client, "cid@example.com").await, Value::Null);
}

#[rstest]
#[case("upsert", "unsubscribed")]
#[case("upsert", "pending")]
#[case("create", "unsubscribed")]
#[tokio::test]
async fn what_any_address_of_a_merged_contact_says_counts(#[case] operation: &str, #[case] status: &str) {
    const PAIRS: usize = 20;
    let edge = Edge::start().await;
    let client = edge.client().await;
    let mut csv = "email,first_name,marketing_status\n".to_owned();
    let word = |is_stopped: bool| if is_stopped { status } else { "subscribed" };
    for n in 0..PAIRS {
        let (kept, merged) = (format!("a{n}@example.com"), format!("b{n}@example.com"));
        let kept_id = client.post("/v1/contacts", json!({"email": kept})).await.text("contact_id");
        let merged_id = client.post("/v1/contacts", json!({"email": merged})).await.text("contact_id");
        client.post(&format!("/v1/contacts/{kept_id}/merge"), json!({"contact_id": merged_id})).await;
        // What stops mail is in the first row of every other pair, and in that of either address.
        let rows = [format!("{kept},Own,{}\n", word(n % 4 < 2)), format!("{merged},Other,{}\n", word(n % 4 >= 2))];
        csv += &if n % 2 == 0 { rows.concat() } else { rows.into_iter().rev().collect() };
    }
    let answer = import(&client, operation, &csv).await;
    assert_eq!(answer.body["counts"]["updated"], json!(2 * PAIRS));
    let stopped = "select count(*) from contacts where merged_into is null and marketing_status = $1";
    let stopped: i64 = sqlx::query_scalar(stopped).bind(status).fetch_one(&edge.pool).await.unwrap();
    assert_eq!(stopped, 20);
    let named = "select count(*) from contacts where first_name = 'Own'";
    assert_eq!(edge.count(named).await, if operation == "upsert" { 20 } else { 0 });
}

#[tokio::test]
async fn a_consent_time_of_the_year_0_costs_only_its_row() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let csv = "email,consent_at\nann@example.com,0000-01-01\nbob@example.com,2024-01-01\n";
    let answer = import(&client, "upsert", csv).await;
    assert_eq!(counts(&answer), json!({"total_rows": 2, "valid": 1, "created": 1, "invalid": 1}));
    assert_eq!(answer.body["errors"][0]["code"], "out_of_range");
}

#[tokio::test]
async fn the_consent_of_a_row_counts_as_a_whole_unless_it_is_older() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let known = json!({"basis": "double_opt_in", "at": "2024-05-01T00:00:00Z", "source": "form", "description": "The page",
                       "evidence": {"ip": "192.0.2.7"}});
    client.post("/v1/contacts", json!({"email": "ann@example.com", "consent": known})).await;
    let before = contact(&client, "ann@example.com").await["consent"].clone();
    let of_row = async |at: &str| {
        let csv = format!("email,consent_basis,consent_at\nann@example.com,fair,{at}\n");
        let answer = client.post(PATH, json!({"csv": csv, "source_slug": "crm"})).await;
        (counts(&answer), contact(&client, "ann@example.com").await["consent"].clone())
    };
    let unchanged = json!({"total_rows": 1, "valid": 1, "unchanged": 1});
    assert_eq!(of_row("2020-01-01").await, (unchanged.clone(), before));
    let (_, newer) = of_row("2025-01-01").await;
    assert_eq!((&newer["basis"], &newer["source"]), (&json!("fair"), &json!("crm")));
    assert!(newer["at"].as_str().unwrap().starts_with("2025-01-01"), "{newer}");
    assert!(newer["description"].is_null() && newer["evidence"].is_null(), "nothing of the other: {newer}");
    assert_eq!(of_row("2025-01-01").await, (unchanged, newer));
}
