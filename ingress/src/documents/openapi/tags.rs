//! The sections of the document, in the order a reader comes to need them.

use serde_json::{Value, json};

/// A group of sections, each with its tag and what it holds.
type TagGroup = (&'static str, &'static [(&'static str, &'static str)]);

const GROUPS: [TagGroup; 7] = [
    (
        "Send",
        &[
            ("transactional", "One template to one person, or an array of them."),
            ("messages", "One-off messages, with attachments."),
            ("campaigns", "One mail to an audience."),
            ("sends", "What became of each mail."),
        ],
    ),
    (
        "People",
        &[
            ("contacts", "Who may be mailed."),
            ("imports", "Contacts from CSV."),
            ("audiences", "Lists, tags and topics."),
            ("segments", "Contacts found by a rule."),
            ("fields", "Fields of contacts that a tenant defines."),
            ("suppressions", "Addresses that must not be mailed."),
            ("explain", "Why a recipient is mailed, or is not."),
        ],
    ),
    (
        "Content",
        &[
            ("templates", "Templates and their versions."),
            ("snippets", "Pieces of templates, and layouts around them."),
            ("senders", "From whom mail comes."),
            ("domains", "Sending domains and their DNS records."),
        ],
    ),
    (
        "Automation",
        &[
            ("sequences", "Series of steps."),
            ("enrollments", "Contacts on their way through a sequence."),
            ("events", "What contacts did in the product."),
        ],
    ),
    (
        "Results",
        &[
            ("analytics", "Numbers of campaigns and tenants."),
            ("outcomes", "What mails are credited with."),
            ("exports", "All of it, as CSV or NDJSON."),
        ],
    ),
    ("Webhooks", &[("webhooks", "Events by signed HTTP requests.")]),
    (
        "System",
        &[
            ("tenant", "The tenant's profile."),
            ("keys", "API keys of a tenant."),
            ("audit", "What was changed, and by whom."),
            ("requests", "What a product asked for."),
            ("connections", "A tenant's own accounts with mail providers."),
            ("tenants", "Tenants of a product."),
            ("system", "Health, and this document."),
            ("recipients", "Links in mails: tracking, confirmation, unsubscribe, preferences."),
            ("hooks", "Events of mail providers."),
            ("assistant", "The endpoint for assistants (MCP)."),
        ],
    ),
];

pub(super) fn tag(path: &str) -> &str {
    let path = path.strip_prefix("/v1/").unwrap_or_else(|| path.trim_start_matches('/'));
    match path.split('/').next() {
        Some("t" | "c" | "u" | "p") => "recipients",
        Some("mcp" | ".well-known") => "assistant",
        Some("health" | "platform" | "openapi.json" | "asyncapi.json" | "docs") | None => "system",
        Some(first) => first,
    }
}

/// `tags`: every section with its description, in order.
pub(super) fn tags() -> Value {
    let sections = GROUPS.iter().flat_map(|(_, sections)| *sections);
    sections.map(|(name, description)| json!({"name": name, "description": description})).collect()
}

/// `x-tagGroups`, which viewers show as headings.
pub(super) fn groups() -> Value {
    let names = |sections: &[(&'static str, &str)]| sections.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    GROUPS.iter().map(|(group, sections)| json!({"name": group, "tags": names(sections)})).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_belongs_to_a_section_of_the_document() {
        let known: Vec<&str> = GROUPS.iter().flat_map(|(_, sections)| *sections).map(|(name, _)| *name).collect();
        for operation in crate::routes::operations() {
            assert!(known.contains(&tag(operation.path)), "{}", operation.path);
        }
    }
}
