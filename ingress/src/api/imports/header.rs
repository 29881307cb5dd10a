//! The header of a CSV file: what each column is read into.

use std::collections::{BTreeMap, HashSet};

use super::{
    ImportOperation,
    file::{fault, shown},
};
use crate::{
    api::{exports::contact_columns, fields::definitions::FieldType},
    pipeline::error::ApiError,
};

/// What a column is read into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Column {
    /// The address: the one column that must be there.
    Email,
    /// The contact's id in the product.
    ExternalId,
    FirstName,
    LastName,
    Title,
    Phone,
    Company,
    LifecycleStage,
    DotNumber,
    Timezone,
    Locale,
    /// Names of tags.
    Tags,
    /// A list's name.
    List,
    /// Names of lists.
    Lists,
    /// Whether the contact is archived: of an export only.
    Status,
    /// Whether the contact has left.
    Unsubscribed,
    MarketingStatus,
    /// Why the address is suppressed.
    SuppressionReason,
    /// Which mail a suppression withholds: of a list of suppressions only, as the note and the end.
    SuppressionScope,
    /// The tenant's note on a suppression.
    SuppressionNote,
    /// When a suppression ends.
    SuppressionEnd,
    /// On what basis the contact may be mailed.
    ConsentBasis,
    /// Since when.
    ConsentAt,
    /// A field the tenant defined.
    Field {
        key: String,
        kind: FieldType,
    },
    /// Values of fields the tenant defined, these, by key.
    Fields(BTreeMap<String, FieldType>),
}

/// A header, understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CsvHeader {
    /// What each column is; `None` for ignored ones.
    pub columns: Vec<Option<Column>>,
    /// The names as written in the file.
    pub names: Vec<String>,
    /// What the import does with the rows.
    pub operation: ImportOperation,
    /// Each row is a suppression with terms of its own: an address may have several, by reason.
    pub has_terms: bool,
}

impl Column {
    /// Whether an import reads the column. What stops mail is read by every one.
    fn is_read_by(&self, operation: ImportOperation) -> bool {
        let stops_mail = matches!(
            self,
            Self::Email
                | Self::Unsubscribed
                | Self::MarketingStatus
                | Self::SuppressionReason
                | Self::SuppressionScope
                | Self::SuppressionNote
                | Self::SuppressionEnd
        );
        match operation {
            ImportOperation::SuppressionImport => stops_mail,
            ImportOperation::AudienceOnly => stops_mail || matches!(self, Self::Tags | Self::List | Self::Lists),
            ImportOperation::Create
            | ImportOperation::Update
            | ImportOperation::Upsert
            | ImportOperation::VerificationOnly => true,
        }
    }
}

impl CsvHeader {
    /// Understands the names. Case, spaces, dashes and underscores do not matter.
    ///
    /// # Errors
    /// 400 with the line for a name that is there twice, or without an address column.
    pub fn read(
        names: &[String],
        defined: &BTreeMap<String, FieldType>,
        operation: ImportOperation,
    ) -> Result<Self, ApiError> {
        let fields: BTreeMap<String, (&String, FieldType)> =
            defined.iter().map(|(key, kind)| (plain(key), (key, *kind))).collect();
        let mut columns: Vec<Option<Column>> = Vec::with_capacity(names.len());
        let mut seen = HashSet::with_capacity(names.len());
        // As an export writes the values of fields: no other column of an export is one of them, whatever a field is named.
        let is_exported = names.iter().any(|name| plain(name) == "fields");
        let is_list = operation == ImportOperation::SuppressionImport;
        let has_terms = is_list && names.iter().any(|name| suppression_term(&plain(name)).is_some());
        for name in names {
            let word = plain(name);
            // Of several fields that are spelled alike, the one that is named exactly.
            let field = || {
                let exact = defined.get_key_value(name).map(|(key, kind)| (key, *kind));
                exact.or(fields.get(&word).copied()).filter(|_| !(has_terms || is_exported && has_export_column(&word)))
            };
            let column = match word.as_str() {
                "fields" => Some(Column::Fields(defined.clone())),
                // Other files call other things so.
                "status" if is_exported => Some(Column::Status),
                word => suppression_term(word)
                    .filter(|_| has_terms)
                    .or_else(|| builtin(word))
                    .or_else(|| field().map(|(key, kind)| Column::Field { key: key.clone(), kind })),
            };
            let column = column.filter(|column| column.is_read_by(operation));
            let is_repeated = match &column {
                Some(_) => columns.contains(&column),
                None => !word.is_empty() && !seen.insert(word),
            };
            if is_repeated {
                return Err(fault(1, "duplicate_header", &format!("two columns mean {}", shown(name))));
            }
            columns.push(column);
        }
        if !columns.contains(&Some(Column::Email)) {
            return Err(fault(1, "missing_column", "there is no email column"));
        }
        Ok(Self { columns, names: names.to_vec(), operation, has_terms })
    }

    /// The name that a column has in the file.
    pub fn name_of(&self, column: &Column) -> &str {
        let place = self.columns.iter().position(|known| known.as_ref() == Some(column));
        place.and_then(|place| self.names.get(place)).map_or("", String::as_str)
    }

    /// The names of the columns that are not read.
    pub fn ignored(&self) -> Vec<String> {
        let unread = self.columns.iter().zip(&self.names).filter(|(column, _)| column.is_none());
        unread.map(|(_, name)| shown(name)).collect()
    }
}

fn builtin(word: &str) -> Option<Column> {
    Some(match word {
        "email" | "emailaddress" | "mail" => Column::Email,
        "externalid" => Column::ExternalId,
        "firstname" => Column::FirstName,
        "lastname" => Column::LastName,
        "title" => Column::Title,
        "phone" => Column::Phone,
        "company" => Column::Company,
        "lifecyclestage" => Column::LifecycleStage,
        "dotnumber" => Column::DotNumber,
        "timezone" => Column::Timezone,
        "locale" => Column::Locale,
        "tags" => Column::Tags,
        "list" => Column::List,
        "lists" => Column::Lists,
        "unsubscribed" => Column::Unsubscribed,
        "marketingstatus" => Column::MarketingStatus,
        "suppressionreason" => Column::SuppressionReason,
        "consentbasis" => Column::ConsentBasis,
        "consentat" => Column::ConsentAt,
        _ => return None,
    })
}

/// What a column says of a suppression, in a list of them, as an export of suppressions names it.
fn suppression_term(word: &str) -> Option<Column> {
    Some(match word {
        "reason" | "suppressionreason" => Column::SuppressionReason,
        "scope" => Column::SuppressionScope,
        "note" => Column::SuppressionNote,
        "expiresat" => Column::SuppressionEnd,
        _ => return None,
    })
}

/// Whether no field can have this name, because an import or an export of contacts has a column of it.
pub(in crate::api) fn is_reserved_name(name: &str) -> bool {
    let word = plain(name);
    builtin(&word).is_some() || has_export_column(&word)
}

fn has_export_column(word: &str) -> bool {
    contact_columns().any(|column| plain(column) == word)
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| !c.is_whitespace() && *c != '-' && *c != '_').flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn header(names: &[&str]) -> Result<CsvHeader, ApiError> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let defined = BTreeMap::from([("plan_tier".to_owned(), FieldType::String)]);
        CsvHeader::read(&names, &defined, ImportOperation::Upsert)
    }

    #[test]
    fn header_names_ignore_case_spaces_dashes_and_underscores() {
        let header = header(&["E-Mail", "FIRST NAME", "Dot_Number", "Plan-Tier", "Shoe size"]).unwrap();
        assert_eq!(header.columns[0], Some(Column::Email));
        assert_eq!(header.columns[1], Some(Column::FirstName));
        assert_eq!(header.columns[2], Some(Column::DotNumber));
        assert_eq!(header.columns[3], Some(Column::Field { key: "plan_tier".to_owned(), kind: FieldType::String }));
        assert_eq!(header.ignored(), ["Shoe size"]);
    }

    #[test]
    fn fields_that_are_spelled_alike_are_distinguished_by_their_keys() {
        let defined = ["a_b", "ab"].map(|key| (key.to_owned(), FieldType::String));
        let names = ["email", "a_b", "ab"].map(str::to_owned);
        let header = CsvHeader::read(&names, &BTreeMap::from(defined), ImportOperation::Upsert).unwrap();
        let keys = header.columns[1..].iter().map(|column| match column {
            Some(Column::Field { key, .. }) => key.as_str(),
            _ => "",
        });
        assert_eq!(keys.collect::<Vec<_>>(), ["a_b", "ab"]);
    }

    #[test]
    fn a_column_of_an_export_is_no_field_beside_the_column_of_fields() {
        let defined = BTreeMap::from(["source", "plan"].map(|key| (key.to_owned(), FieldType::String)));
        let ignored = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            CsvHeader::read(&names, &defined, ImportOperation::Upsert).unwrap().ignored()
        };
        assert_eq!(ignored(&["email", "fields", "source", "plan"]), ["source"]);
        assert!(ignored(&["email", "source", "plan"]).is_empty());
    }

    #[rstest]
    #[case(ImportOperation::Upsert, &["email", "reason"], &[])]
    #[case(ImportOperation::SuppressionImport, &["email", "reason"], &["source"])]
    #[case(ImportOperation::SuppressionImport, &["email", "suppression_reason"], &["source"])]
    #[case(ImportOperation::Upsert, &["email", "suppression_reason"], &[])]
    fn terms_of_suppressions_are_read_in_a_list_of_them_only(
        #[case] operation: ImportOperation,
        #[case] names: &[&str],
        #[case] ignored: &[&str],
    ) {
        let defined = BTreeMap::from(["reason", "source"].map(|key| (key.to_owned(), FieldType::String)));
        let names: Vec<String> = names.iter().chain(&["source"]).map(|name| (*name).to_owned()).collect();
        assert_eq!(CsvHeader::read(&names, &defined, operation).unwrap().ignored(), ignored);
    }

    #[rstest]
    #[case(ImportOperation::SuppressionImport, &["tags", "list", "phone", "fields"])]
    #[case(ImportOperation::AudienceOnly, &["phone", "fields"])]
    #[case(ImportOperation::Create, &[])]
    #[case(ImportOperation::Update, &[])]
    #[case(ImportOperation::VerificationOnly, &[])]
    fn what_stops_mail_is_read_by_every_operation(#[case] operation: ImportOperation, #[case] ignored: &[&str]) {
        let names =
            ["email", "unsubscribed", "suppression_reason", "marketing_status", "tags", "list", "phone", "fields"];
        let header = CsvHeader::read(&names.map(str::to_owned), &BTreeMap::new(), operation).unwrap();
        assert_eq!(header.ignored(), ignored);
    }

    #[rstest]
    #[case(&["email", "E-mail"], "duplicate_header")]
    #[case(&["email", "mail"], "duplicate_header")]
    #[case(&["email", "colour", "Colour"], "duplicate_header")]
    #[case(&["name", "phone"], "missing_column")]
    fn a_header_that_cannot_be_meant_is_refused(#[case] names: &[&str], #[case] code: &str) {
        assert_eq!(header(names).unwrap_err().fields[0].code, code);
    }
}
