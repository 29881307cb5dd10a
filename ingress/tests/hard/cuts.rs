//! Clients that hang up at every byte: nothing is half done, and no connection is spoilt.

use std::{net::SocketAddr, sync::Arc};

use http::Method;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, sync::Semaphore};

use crate::{
    common::Client,
    wire::{Wire, connect, exchange, signed, statuses},
};

const CUTS: usize = 5_000;
const AT_ONCE: usize = 24;

/// One valid request that nobody has sent yet: each number is a request of its own.
async fn request(client: &Client, number: usize) -> (Vec<u8>, String) {
    let key = format!("cut-{number}");
    let tenant = &client.product_tenant_id;
    let post = |path: &'static str, body: Value| (Method::POST, path.to_owned(), body);
    let (method, target, body) = match number % 5 {
        0 => post("/v1/contacts", json!({"product_tenant_id": tenant, "email": format!("cut-{number}@example.com")})),
        1 => post("/v1/audiences", json!({"product_tenant_id": tenant, "kind": "list", "name": key})),
        2 => {
            let csv = format!("email,list\ncut-{number}@example.com,list {number}\n");
            post("/v1/imports", json!({"product_tenant_id": tenant, "csv": csv}))
        }
        3 => {
            let address = format!("cut-{number}@example.com");
            post("/v1/suppressions", json!({"product_tenant_id": tenant, "email": address, "reason": "manual"}))
        }
        _ => (Method::GET, format!("/v1/contacts?product_tenant_id={tenant}&limit=1"), Value::Null),
    };
    let (bytes, extra) = match method {
        Method::GET => (Vec::new(), Vec::new()),
        _ => (body.to_string().into_bytes(), vec![("idempotency-key", key.as_str())]),
    };
    (signed(client, method, &target, &bytes, &extra).await, key.clone())
}

/// Sends so many of the bytes, and hangs up without listening.
async fn cut(address: SocketAddr, bytes: &[u8]) {
    let mut stream = connect(address).await;
    let _ = stream.write_all(bytes).await;
    // A reset, not a goodbye: nothing that is still on its way is waited for.
    let _ = stream.set_zero_linger();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_at_any_byte_leaves_nothing_half_done() {
    let wire = Wire::start().await;
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = tokio::task::JoinSet::new();
    let mut longest = 0;
    for number in 0..CUTS {
        let (bytes, _) = request(&wire.client, number).await;
        longest = longest.max(bytes.len());
        // Every position of every kind of request comes up, and the last ones (where the act begins) most often.
        let at = if number % 10 < 5 { bytes.len() - (number / 10) % 4 } else { (number / 5 * 7) % bytes.len() };
        let (slot, address) = (Arc::clone(&slots).acquire_owned().await.unwrap(), wire.address);
        tasks.spawn(async move {
            let _slot = slot;
            cut(address, &bytes[..at]).await;
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert!(longest > 400, "{longest}");
    // Everything in hand comes to its end. Then every request once more, whole: what was done is not done again.
    let (client, address) = (wire.client.clone(), wire.address);
    let mut again = tokio::task::JoinSet::new();
    for number in (0..CUTS).filter(|number| number % 5 != 4) {
        let slot = Arc::clone(&slots).acquire_owned().await.unwrap();
        let client = client.clone();
        again.spawn(async move {
            let _slot = slot;
            let (mut bytes, _) = request(&client, number).await;
            let deadline = tokio::time::Instant::now() + crate::wire::PATIENCE;
            loop {
                let answer = exchange(address, &bytes).await;
                match statuses(&answer).as_slice() {
                    [200 | 201] => return,
                    // The first one is still in hand, or the acts of those who hung up hold all connections to Postgres, or as many of
                    // theirs are open as one address may have.
                    [] | [409 | 503] if tokio::time::Instant::now() < deadline => {}
                    other => panic!("{number}: {other:?} {}", String::from_utf8_lossy(&answer)),
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                (bytes, _) = request(&client, number).await;
            }
        });
    }
    while let Some(done) = again.join_next().await {
        done.unwrap();
    }
    let edge = wire.stop().await;
    let of_each = (CUTS / 5) as i64;
    assert_eq!(edge.count("select count(*) from contacts").await, of_each * 2, "of contacts and of imports");
    assert_eq!(edge.count("select count(*) from imports").await, of_each);
    assert_eq!(edge.count("select count(*) from audiences").await, of_each * 2);
    assert_eq!(edge.count("select count(*) from suppressions").await, of_each);
    assert_eq!(edge.count("select count(*) from idempotency_keys").await, of_each * 4);
    assert_eq!(edge.count("select count(*) from idempotency_keys where status is null or body is null").await, 0);
}
