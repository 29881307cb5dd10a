//! Asks the mail sink what it got.

use serde_json::{Value, json};

/// The sink's HTTP side.
#[derive(Clone)]
pub struct SinkClient {
    http: reqwest::Client,
    url: String,
}

impl SinkClient {
    pub fn new(http_addr: &str) -> Self {
        Self { http: reqwest::Client::new(), url: format!("http://{http_addr}") }
    }

    /// `{accepted, distinct, duplicates, …}`
    pub async fn stats(&self) -> Value {
        self.get("/stats").await
    }

    pub async fn accepted(&self) -> u64 {
        self.stats().await["accepted"].as_u64().unwrap()
    }

    /// Waits until this many were accepted, or the time is over; answers how many were.
    pub async fn wait(&self, accepted: u64, timeout_ms: u64) -> u64 {
        self.get(&format!("/wait?accepted={accepted}&timeout_ms={timeout_ms}")).await;
        self.accepted().await
    }

    /// How many mails each address got, in the order asked.
    pub async fn counts(&self, addresses: &[String]) -> Vec<u64> {
        let mut counts = Vec::with_capacity(addresses.len());
        for part in addresses.chunks(10_000) {
            counts.extend(self.ask_counts(part).await.iter().map(|found| found["count"].as_u64().unwrap()));
        }
        counts
    }

    async fn ask_counts(&self, addresses: &[String]) -> Vec<Value> {
        let answer: Value =
            self.http.post(format!("{}/counts", self.url)).json(&addresses).send().await.unwrap().json().await.unwrap();
        let counts = answer["counts"].as_array().cloned().unwrap_or_default();
        assert_eq!(counts.len(), addresses.len(), "{answer}");
        counts
    }

    /// When each address got its first mail, in microseconds since 1970.
    pub async fn first_accepted_us(&self, addresses: &[String]) -> Vec<Option<u64>> {
        self.ask_counts(addresses).await.iter().map(|found| found["first_at_us"].as_u64()).collect()
    }

    /// The newest messages to an address, parsed.
    pub async fn messages_to(&self, address: &str) -> Vec<Value> {
        let answer = self.get(&format!("/messages?to={}", address.replace('+', "%2B"))).await;
        let mut messages = Vec::new();
        for entry in answer["messages"].as_array().unwrap() {
            messages.push(self.get(&format!("/messages/{}", entry["id"])).await);
        }
        messages
    }

    /// A message as it came over the wire.
    pub async fn source(&self, id: u64) -> String {
        self.http.get(format!("{}/messages/{id}/source", self.url)).send().await.unwrap().text().await.unwrap()
    }

    pub async fn set_rules(&self, rules: Value) {
        let answer = self.http.put(format!("{}/rules", self.url)).json(&rules).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap_or_default());
    }

    /// Forgets everything.
    pub async fn reset(&self) {
        self.http.delete(format!("{}/messages", self.url)).json(&json!({})).send().await.unwrap();
    }

    async fn get(&self, path: &str) -> Value {
        self.http.get(format!("{}{path}", self.url)).send().await.unwrap().json().await.unwrap()
    }
}
