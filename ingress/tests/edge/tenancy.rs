//! Tenants cannot touch each other; linking.

use http::Method;
use rstest::rstest;
use schemas::Environment;
use serde_json::{Value, json};

use crate::common::{Client, Edge, PRODUCT};

/// A tenant with one of everything; answers the paths to each.
async fn furnish(client: &Client) -> Vec<(Method, String, Value, &'static str)> {
    let contact = client.post("/v1/contacts", json!({"email": "ann@example.com"})).await.text("contact_id");
    let audience = client.post("/v1/audiences", json!({"kind": "list", "name": "News"})).await.text("audience_id");
    let field =
        client.post("/v1/fields", json!({"key": "plan", "label": "Plan", "type": "string"})).await.text("field_id");
    let suppression = client.post("/v1/suppressions", json!({"email": "bob@example.com"})).await.text("suppression_id");
    let import = client.post("/v1/imports", json!({"csv": "email\ncid@example.com\n"})).await.text("import_id");
    vec![
        (Method::GET, format!("/v1/contacts/{contact}"), Value::Null, "contact_not_found"),
        (Method::PATCH, format!("/v1/contacts/{contact}"), json!({"first_name": "Eve"}), "contact_not_found"),
        (Method::DELETE, format!("/v1/contacts/{contact}"), json!({"erase": true}), "contact_not_found"),
        (Method::GET, format!("/v1/audiences/{audience}"), Value::Null, "audience_not_found"),
        (Method::POST, format!("/v1/audiences/{audience}/members"), json!({"add": []}), "audience_not_found"),
        (Method::GET, format!("/v1/contacts?list_id={audience}"), Value::Null, "list_not_found"),
        (Method::GET, format!("/v1/fields/{field}"), Value::Null, "field_not_found"),
        (Method::PATCH, format!("/v1/fields/{field}"), json!({"label": "X"}), "field_not_found"),
        (
            Method::DELETE,
            "/v1/suppressions".to_owned(),
            json!({"suppression_id": suppression}),
            "suppression_not_found",
        ),
        (Method::DELETE, "/v1/suppressions".to_owned(), json!({"email": "bob@example.com"}), "suppression_not_found"),
        (Method::GET, format!("/v1/imports/{import}"), Value::Null, "import_not_found"),
    ]
}

async fn call(client: &Client, method: &Method, path: &str, body: &Value) -> (u16, String) {
    let answer = match *method {
        Method::GET => client.get(path).await,
        _ => client.write(method.clone(), path, body.clone(), &[]).await,
    };
    let (status, code) = answer.refusal();
    (status, code.to_owned())
}

#[tokio::test]
async fn another_tenants_object_is_a_404_like_one_that_never_was() {
    let edge = Edge::start().await;
    let owner = edge.client().await;
    let same_product = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let other_product = edge.client_for("shop", Environment::Production, "tenant-1").await;
    let other_environment = edge.client_for(PRODUCT, Environment::Sandbox, "tenant-1").await;
    for (method, path, body, code) in furnish(&owner).await {
        for stranger in [&same_product, &other_product, &other_environment] {
            assert_eq!(call(stranger, &method, &path, &body).await, (404, code.to_owned()), "{method} {path}");
        }
    }
    for path in ["/v1/contacts", "/v1/audiences", "/v1/fields", "/v1/suppressions"] {
        let list = same_product.get(path).await;
        let plural = path.trim_start_matches("/v1/");
        assert_eq!((list.status.as_u16(), list.body[plural].as_array().unwrap().len()), (200, 0), "{path}");
    }
    // And nothing of it was done.
    assert_eq!(edge.count("select count(*) from contacts where status = 'active' and first_name is null").await, 2);
    assert_eq!(edge.count("select count(*) from suppressions").await, 1);
}

#[rstest]
#[case("0198C0DE-0000-7000-8000-000000000001")]
#[case("0198c0de000070008000000000000001")]
#[case("x")]
#[tokio::test]
async fn an_id_in_another_form_names_nothing(#[case] id: &str) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    assert_eq!(client.get(&format!("/v1/contacts/{id}")).await.refusal(), (404, "contact_not_found"));
}

#[tokio::test]
async fn the_engine_tenant_id_is_only_a_check() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let other = edge.link(PRODUCT, Environment::Production, "tenant-2").await;
    let with = |tenant: uuid::Uuid| json!({"email": "ann@example.com", "engine_tenant_id": tenant});
    assert_eq!(client.post("/v1/contacts", with(other)).await.refusal(), (403, "tenant_mismatch"));
    assert_eq!(client.post("/v1/contacts", with(client.tenant)).await.status, 201);
    assert_eq!(client.get(&format!("/v1/contacts?engine_tenant_id={other}")).await.refusal(), (403, "tenant_mismatch"));
    assert_eq!(client.get(&format!("/v1/contacts?engine_tenant_id={}", client.tenant)).await.status, 200);
    let unlinked = Client { product_tenant_id: "nobody".to_owned(), ..client };
    assert_eq!(unlinked.get("/v1/contacts").await.refusal(), (404, "tenant_not_found"));
}

/// A long body is not searched for its tenant before it is parsed.
#[rstest]
#[case::short(0)]
#[case::long(70_000)]
#[tokio::test]
async fn a_write_is_of_the_tenant_that_its_body_names(#[case] spaces: usize) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let other = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let post = async |tenant: &str, engine_tenant_id: uuid::Uuid| {
        let body =
            json!({"product_tenant_id": tenant, "engine_tenant_id": engine_tenant_id, "email": "ann@example.com"});
        let body = format!("{body}{}", " ".repeat(spaces));
        let target = "/v1/contacts?product_tenant_id=tenant-1";
        let answer = client.send(client.signed(Method::POST, target, body.as_bytes())).await;
        (answer.status.as_u16(), answer.body["error"].as_str().unwrap_or_default().to_owned())
    };
    let refusal = |status: u16, code: &str| (status, code.to_owned());
    assert_eq!(post("nobody", client.tenant).await, refusal(404, "tenant_not_found"));
    assert_eq!(post("tenant-2", client.tenant).await, refusal(403, "tenant_mismatch"));
    assert_eq!(post("tenant-2", other.tenant).await, refusal(201, ""));
    let tenants: Vec<uuid::Uuid> =
        sqlx::query_scalar("select tenant_id from contacts").fetch_all(&edge.pool).await.unwrap();
    assert_eq!(tenants, [other.tenant]);
}

#[tokio::test]
async fn linking_finds_or_creates_and_keeps_up_to_date() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let body = json!({"product_tenant_id": "new-1", "email": "Owner@Example.com", "org_name": "Acme"});
    let first = client.post("/v1/tenants/link", body.clone()).await;
    assert_eq!((first.status.as_u16(), first.body["already_linked"].as_bool()), (200, Some(false)));
    let tenant = first.text("engine_tenant_id");
    let again =
        client.post("/v1/tenants/link", json!({"product_tenant_id": "new-1", "email": "next@example.com"})).await;
    assert_eq!((again.body["already_linked"].as_bool(), again.text("engine_tenant_id")), (Some(true), tenant.clone()));
    let row: (String, String, String) =
        sqlx::query_as("select owner_email, org_name, environment from tenants where id = $1::uuid")
            .bind(&tenant)
            .fetch_one(&edge.pool)
            .await
            .unwrap();
    assert_eq!(row, ("next@example.com".to_owned(), "Acme".to_owned(), "production".to_owned()));
    let linked = Client { product_tenant_id: "new-1".to_owned(), ..client.clone() };
    assert_eq!(linked.get("/v1/contacts").await.status, 200);

    let sandbox = edge.client_for(PRODUCT, Environment::Sandbox, "x").await;
    let elsewhere = sandbox.post("/v1/tenants/link", body).await;
    assert_ne!(elsewhere.text("engine_tenant_id"), tenant, "each environment has its own tenants");
}

#[tokio::test]
async fn a_repeated_link_without_a_change_writes_nothing() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let body = json!({"product_tenant_id": "new-1", "email": "owner@example.com", "org_name": "Acme"});
    client.post("/v1/tenants/link", body.clone()).await;
    let versions = async || {
        let rows = "select t.xmin::text || ' ' || l.xmin::text from tenants t join tenant_links l on l.tenant_id = t.id
                    where l.product_tenant_id = 'new-1'";
        sqlx::query_scalar::<_, String>(rows).fetch_one(&edge.pool).await.unwrap()
    };
    let before = versions().await;
    let again = client.post("/v1/tenants/link", body).await;
    assert_eq!((again.status.as_u16(), again.body["already_linked"].as_bool()), (200, Some(true)));
    client.post("/v1/tenants/link", json!({"product_tenant_id": "new-1", "email": "owner@example.com"})).await;
    assert_eq!(versions().await, before);
}

#[tokio::test]
async fn two_first_links_at_once_make_one_tenant() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let answers =
        futures::future::join_all((0..8).map(|_| {
            let client = client.clone();
            async move {
                client.post("/v1/tenants/link", json!({"product_tenant_id": "new-1", "email": "a@example.com"})).await
            }
        }))
        .await;
    let mut tenants: Vec<String> = answers.iter().map(|answer| answer.text("engine_tenant_id")).collect();
    tenants.dedup();
    assert_eq!(tenants.len(), 1);
    assert_eq!(answers.iter().filter(|answer| answer.body["already_linked"] == false).count(), 1);
}

#[tokio::test]
async fn a_link_needs_an_owner_address() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let answer = client.post("/v1/tenants/link", json!({"product_tenant_id": "new-1", "email": "nobody"})).await;
    assert_eq!(answer.faults(), [("email".to_owned(), "missing_at".to_owned())]);
    let answer = client.post("/v1/tenants/link", json!({"product_tenant_id": "new-1"})).await;
    assert_eq!(answer.faults(), [("email".to_owned(), "required".to_owned())]);
}
