//! Hostile events: what reading them costs grows with their length, and no bytes make it panic.

use hostile::Shape;
use runtime::{Budget, Used};
use schemas::ProviderKind;

use super::{SEND_ID, tokens};
use crate::provider::{LIMITS, Malformed, read};

fn used(provider: &str, raw: &[u8]) -> Used {
    let budget = Budget::new(LIMITS);
    let _ = read(provider, raw, &tokens(), &budget);
    budget.used()
}

fn part(name: &str, value: &str) -> String {
    format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

const HOSTILE: &[Shape] = &[
    ("arrays in arrays", |n| b"[".repeat(n)),
    ("objects in objects", |n| b"{\"a\":".repeat(n)),
    ("many small values", |n| [b"[".to_vec(), b"0,".repeat(n), b"0]".to_vec()].concat()),
    ("many empty objects", |n| [b"[".to_vec(), b"{},".repeat(n), b"{}]".to_vec()].concat()),
    ("many events", |n| {
        [b"[".to_vec(), b"{\"event\":\"open\"},".repeat(n), b"{\"event\":\"open\"}]".to_vec()].concat()
    }),
    ("a string that never ends", |n| [b"{\"RecordType\":\"".to_vec(), b"\\\"".repeat(n)].concat()),
    ("an event in an event", |n| {
        let inner = serde_json::to_string(&"[0,".repeat(n)).unwrap();
        format!("{{\"Type\":\"Notification\",\"Message\":{inner}}}").into_bytes()
    }),
    ("a header without an end", |n| {
        let fields = "{\"Name\":\"References\",\"Value\":\"<a@b> <c@d>\"},".repeat(n);
        format!("{{\"MessageID\":\"1\",\"Headers\":[{fields}{{\"Name\":\"a\",\"Value\":\"b\"}}]}}").into_bytes()
    }),
    ("parameters of a header", |n| {
        let value = "a*1=x;".repeat(n);
        let field = format!("{{\"Name\":\"Content-Type\",\"Value\":\"multipart/report;{value}\"}}");
        let path = tokens().return_path_local(SEND_ID.parse().unwrap());
        format!("{{\"MessageID\":\"1\",\"OriginalRecipient\":\"{path}@x\",\"Headers\":[{field}]}}").into_bytes()
    }),
    ("a form of small parts", |n| part("x", "").repeat(n).into_bytes()),
    ("a form with half delimiters", |n| format!("{}{}", part("headers", ""), "\r\n--".repeat(n)).into_bytes()),
    ("a form whose header goes on", |n| {
        [part("headers", &"Received: x\r\n y\r\n".repeat(n)), "--x--\r\n".to_owned()].concat().into_bytes()
    }),
    ("a form of small pairs", |n| b"headers=%41&a&".repeat(n)),
    ("a list in a form", |n| format!("recipient=a&message-headers={}", "[[%22a%22,%22b%22],".repeat(n)).into_bytes()),
];

#[test]
fn reading_a_hostile_event_costs_no_more_than_its_length() {
    for provider in ProviderKind::HTTP {
        for n in [40, 2_000] {
            hostile::check_growth(HOSTILE, n, 10_000, |raw| used(provider, raw));
        }
    }
}

#[test]
fn an_event_of_too_much_is_refused_before_it_is_built() {
    let deep = b"[".repeat(1_000);
    let many = [b"[".to_vec(), b"0,".repeat(400_000), b"0]".to_vec()].concat();
    let long = vec![b' '; LIMITS.input_bytes + 1];
    for provider in ["ses", "postmark", "resend"] {
        for raw in [&deep, &many, &long] {
            assert_eq!(
                read(provider, raw, &tokens(), &Budget::new(LIMITS)),
                Err(Malformed("too_costly")),
                "{provider}"
            );
        }
    }
}

#[test]
fn fuzz_provider_events() {
    const TOKENS: &[&[u8]] = &[
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\"",
        b"\\",
        b"null",
        b"1e999",
        b"\"Message\":\"",
        b"\"event\":\"bounce\"",
        b"\"RecordType\":\"Bounce\"",
        b"\"Headers\":[",
        b"{\"Name\":\"In-Reply-To\",\"Value\":\"<a@b>\"}",
        b"\"timestamp\":",
        b"-1",
        b"--x\r\n",
        b"--x--\r\n",
        b"Content-Disposition: form-data; name=\"headers\"\r\n\r\n",
        b"name=envelope\r\n\r\n",
        b"\r\n",
        b"message-headers=",
        b"recipient=",
        b"&",
        b"%5b",
        b"%",
        b"+",
        b"In-Reply-To: <",
        b"References: ",
        b">",
        b"\xff",
        b"\0",
        b"{\"Type\":\"Notification\",\"Message\":\"{}\"}",
        b"\"eventType\":\"Bounce\"",
        b"\"mail\":{",
        b"\"tags\":[",
        b"\"type\":\"email.received\"",
    ];
    let tokens = tokens();
    hostile::fuzz(TOKENS, |raw| {
        for provider in ProviderKind::HTTP {
            let _ = read(provider, raw, &tokens, &Budget::new(LIMITS));
        }
    });
}
