//! Good and hostile samples, made here.

use std::io::{Cursor, Write};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rstest::rstest;
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

use super::{examine::LIMITS, *};
use hostile::{Shape, check_growth, fuzz};
use runtime::{Budget, Used};

/// The media type to send it with, if the content is what the extension says.
fn media_type(kind: FileKind, content: &[u8]) -> Result<&'static str, AttachmentRefusal> {
    let job = [[kind as u8].as_slice(), content].concat();
    match examine::run(&job).unwrap() {
        InspectionResult::Good { charset } => Ok(kind.sent_as(charset)),
        InspectionResult::Refused(refusal) => Err(refusal),
    }
}

/// What a look into these bytes costs, whatever comes of it.
fn cost(kind: FileKind, content: &[u8]) -> Used {
    let budget = Budget::new(LIMITS);
    let _ = examine::examine(kind, content, &budget);
    budget.used()
}

const WORD_MAIN: &str = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml";
const SHEET_MAIN: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml";

fn types(main: &str) -> String {
    format!("<?xml version=\"1.0\"?><Types><Override PartName=\"/main.xml\" ContentType=\"{main}\"/></Types>")
}

fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    for (name, content) in entries {
        writer.start_file(*name, options).unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn office(main: &str, more: &[(&str, &[u8])]) -> Vec<u8> {
    let types = types(main);
    let mut entries: Vec<(&str, &[u8])> =
        vec![("[Content_Types].xml", types.as_bytes()), ("_rels/.rels", b"<Relationships/>"), ("main.xml", b"<main/>")];
    entries.extend(more);
    archive(&entries)
}

fn docx(more: &[(&str, &[u8])]) -> Vec<u8> {
    office(WORD_MAIN, more)
}

fn xlsx(more: &[(&str, &[u8])]) -> Vec<u8> {
    office(SHEET_MAIN, more)
}

fn record(kind: u16, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap();
    [kind.to_le_bytes().as_slice(), &length.to_le_bytes(), data].concat()
}

fn compound(streams: &[(&str, &[u8])]) -> Vec<u8> {
    let mut file = cfb::CompoundFile::create(Cursor::new(Vec::new())).unwrap();
    for (path, content) in streams {
        if let Some(parent) = std::path::Path::new(path).parent() {
            file.create_storage_all(parent).unwrap();
        }
        file.create_stream(path).unwrap().write_all(content).unwrap();
    }
    file.flush().unwrap();
    file.into_inner().into_inner()
}

fn workbook(records: &[Vec<u8>]) -> Vec<u8> {
    [record(0x0809, &[0, 6, 5, 0]), records.concat(), record(0x000a, &[])].concat()
}

fn xls(records: &[Vec<u8>], more: &[(&str, &[u8])]) -> Vec<u8> {
    let workbook = workbook(records);
    let mut streams: Vec<(&str, &[u8])> = vec![("/Workbook", &workbook)];
    streams.extend(more);
    compound(&streams)
}

fn sheet(kind: u8) -> Vec<u8> {
    record(0x0085, &[0, 0, 0, 0, 0, kind, 1, 0, b'S'])
}

fn pdf(objects: &[u8]) -> Vec<u8> {
    [b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog >>\nendobj\n".as_slice(), objects, b"\nstartxref\n0\n%%EOF\n"].concat()
}

fn deflated(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn object_stream(dictionary: &str, objects: &[u8]) -> Vec<u8> {
    let head = format!("7 0 obj\n<< /Type /ObjStm /N 1 /First 4 {dictionary} >>\nstream\r\n");
    pdf(&[head.as_bytes(), objects, b"\nendstream\nendobj"].concat())
}

/// An object stream that does not say that it is one, with a script in it.
fn untyped_stream(dictionary: &str) -> Vec<u8> {
    let head = format!("7 0 obj\n<< {dictionary} /Filter /FlateDecode >>\nstream\n");
    pdf(&[head.as_bytes(), &deflated(b"3 0 << /S /JavaScript /JS 4 0 R >>"), b"\nendstream\nendobj"].concat())
}

fn rels(relationships: &[u8]) -> Vec<u8> {
    docx(&[("word/_rels/settings.xml.rels", relationships)])
}

fn many_entries(count: usize) -> Vec<u8> {
    let names: Vec<String> = (0..count).map(|number| format!("x{number}")).collect();
    let entries: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"".as_slice())).collect();
    docx(&entries)
}

/// A compound file whose list names the same sector of the table again and again.
fn listed_table() -> Vec<u8> {
    let mut file = xls(&[sheet(0)], &[]);
    let sector_bytes = if file[30] == 9 { 512 } else { 4_096 };
    file.resize(file.len().next_multiple_of(sector_bytes), 0);
    let first = u32::try_from(file.len() / sector_bytes - 1).unwrap();
    for number in 0..64_u32 {
        let mut sector = vec![0; sector_bytes];
        let next = if number == 63 { 0xffff_fffe } else { first + number + 1 };
        sector[sector_bytes - 4..].copy_from_slice(&next.to_le_bytes());
        file.extend(sector);
    }
    file[68..72].copy_from_slice(&first.to_le_bytes());
    file
}

fn chunk(kind: &[u8], data: &[u8]) -> Vec<u8> {
    [u32::try_from(data.len()).unwrap().to_be_bytes().as_slice(), kind, data, &[0; 4]].concat()
}

fn png(width: u32, height: u32, more: &[u8]) -> Vec<u8> {
    let header = [width.to_be_bytes().as_slice(), &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    let chunks = [chunk(b"IHDR", &header), chunk(b"IDAT", b"x"), chunk(b"IEND", b"")].concat();
    [b"\x89PNG\r\n\x1a\n".as_slice(), &chunks, more].concat()
}

fn jpeg(width: u16, height: u16, more: &[u8]) -> Vec<u8> {
    let frame =
        [&[0xff, 0xc0, 0, 11, 8], height.to_be_bytes().as_slice(), &width.to_be_bytes(), &[1, 1, 0x11, 0]].concat();
    [&[0xff, 0xd8, 0xff, 0xe0, 0, 4, 0, 0], frame.as_slice(), &[0xff, 0xda, 0, 2, 1, 2, 3, 0xff, 0xd9], more].concat()
}

#[rstest]
#[case::pdf(FileKind::Pdf, pdf(b""), "application/pdf")]
#[case::pdf_with_object_stream(FileKind::Pdf, object_stream("/Filter /FlateDecode", &deflated(b"3 0 << /Type /Page >>")), "application/pdf")]
#[case::pdf_with_outline(
    FileKind::Pdf,
    pdf(b"4 0 obj\n<< /Title (a) /First 5 0 R >>\nendobj\n5 0 obj\n<<>>\nstream\nx\nendstream"),
    "application/pdf"
)]
#[case::docx(FileKind::Docx, docx(&[]), FileKind::Docx.media_type())]
#[case::docx_with_link(FileKind::Docx, docx(&[("word/_rels/document.xml.rels", b"<Relationships><Relationship Type=\"x/hyperlink\" Target=\"https://a.test/?a=1&amp;b\" TargetMode=\"External\"/></Relationships>")]), FileKind::Docx.media_type())]
#[case::xlsx(FileKind::Xlsx, xlsx(&[("xl/worksheets/sheet1.xml", b"<sheet/>")]), FileKind::Xlsx.media_type())]
#[case::chart_with_its_workbook(FileKind::Docx, docx(&[("word/embeddings/sheet.xlsx", &xlsx(&[]))]), FileKind::Docx.media_type())]
#[case::xls(FileKind::Xls, xls(&[sheet(0)], &[]), "application/vnd.ms-excel")]
#[case::png(FileKind::Png, png(10, 20, b""), "image/png")]
#[case::jpeg(FileKind::Jpeg, jpeg(10, 20, b"camera data"), "image/jpeg")]
#[case::csv(FileKind::Csv, "\u{feff}name;town\r\nZoë;Köln\r\n".as_bytes().to_vec(), "text/csv; charset=utf-8")]
#[case::old_csv(FileKind::Csv, b"Zo\xeb;K\xf6ln\n".to_vec(), "text/csv; charset=windows-1252")]
#[case::txt(FileKind::Txt, b"Hello <b> {{ name }}\n".to_vec(), "text/plain; charset=utf-8")]
fn a_file_that_is_what_it_says_is_taken(#[case] kind: FileKind, #[case] content: Vec<u8>, #[case] expected: &str) {
    assert_eq!(media_type(kind, &content), Ok(expected));
}

#[rstest]
#[case::empty(FileKind::Pdf, b"".to_vec(), AttachmentRefusal::Empty)]
#[case::first_far_before_the_stream(FileKind::Pdf, untyped_stream(&format!("/First 4 /N 1 /Pad [{}]", "0 ".repeat(4_000))), AttachmentRefusal::Active)]
#[case::end_in_the_dictionary(FileKind::Pdf, untyped_stream("/First 4 /X << /Y endobj >>"), AttachmentRefusal::Active)]
#[case::decoy_comment(FileKind::Pdf, untyped_stream("/First 4 %endobj\n"), AttachmentRefusal::NotInspectable)]
#[case::decoy_object(FileKind::Pdf, untyped_stream("/First 4 /X (8 0 obj)"), AttachmentRefusal::NotInspectable)]
#[case::spelt_first(FileKind::Pdf, untyped_stream("/#46irst 4"), AttachmentRefusal::Active)]
#[case::no_dictionary(FileKind::Pdf, pdf(b"2 0 obj /ObjStm endobj"), AttachmentRefusal::NotInspectable)]
#[case::small_bomb(FileKind::Pdf, object_stream("/Filter /FlateDecode", &deflated(&vec![b' '; 11 * 1024 * 1024])), AttachmentRefusal::Bomb)]
#[case::tab_in_relationship(FileKind::Docx, rels(b"<Relationships><Relationship\tType='x/attachedTemplate' Target='http://e.test' TargetMode='External'/></Relationships>"), AttachmentRefusal::Active)]
#[case::prefix_in_relationship(FileKind::Docx, rels(b"<r:Relationships xmlns:r='x'><r:Relationship Type='x/attachedTemplate' TargetMode='External'/></r:Relationships>"), AttachmentRefusal::Active)]
#[case::greater_in_relationship(
    FileKind::Docx,
    rels(b"<Relationships><Relationship Id='>' Type='x/attachedTemplate' TargetMode = \"External\"/></Relationships>"),
    AttachmentRefusal::Active
)]
#[case::utf16_without_mark(FileKind::Docx, rels(&"<Relationship Type='x/attachedTemplate' TargetMode='External'/>".bytes().flat_map(|byte| [byte, 0]).collect::<Vec<u8>>()), AttachmentRefusal::NotInspectable)]
#[case::declared_utf16(
    FileKind::Docx,
    rels(b"<?xml version='1.0' encoding='UTF-16'?><Relationships/>"),
    AttachmentRefusal::NotInspectable
)]
#[case::document_type(
    FileKind::Docx,
    rels(b"<!DOCTYPE r [<!ENTITY e 'External'>]><Relationship TargetMode='&e;'/>"),
    AttachmentRefusal::NotInspectable
)]
#[case::not_utf8(FileKind::Docx, rels(b"<Relationships a='\xff'/>"), AttachmentRefusal::NotInspectable)]
#[case::unquoted(
    FileKind::Docx,
    rels(b"<Relationship TargetMode=External Type='x/attachedTemplate'/>"),
    AttachmentRefusal::NotInspectable
)]
#[case::inner_archive_that_shrinks(FileKind::Docx, docx(&[("a.xlsx", &[archive::MAGIC, &vec![0; 2 * 1024 * 1024]].concat())]), AttachmentRefusal::NotInspectable)]
#[case::two_of_a_name(FileKind::Docx, docx(&[("A.xml", b"x"), ("a.xml", b"y")]), AttachmentRefusal::Damaged)]
#[case::many_entries(FileKind::Docx, many_entries(2_001), AttachmentRefusal::Bomb)]
#[case::table_named_too_often(FileKind::Xls, listed_table(), AttachmentRefusal::Damaged)]
#[case::program_as_pdf(FileKind::Pdf, b"MZ\x90\0".to_vec(), AttachmentRefusal::Mismatch)]
#[case::junk_before_pdf(FileKind::Pdf, [b"GIF89a".as_slice(), &pdf(b"")].concat(), AttachmentRefusal::Mismatch)]
#[case::cut_pdf(FileKind::Pdf, b"%PDF-1.4\n1 0 obj".to_vec(), AttachmentRefusal::Damaged)]
#[case::encrypted_pdf(FileKind::Pdf, pdf(b"trailer << /Encrypt 5 0 R >>"), AttachmentRefusal::Encrypted)]
#[case::script_pdf(
    FileKind::Pdf,
    pdf(b"2 0 obj << /OpenAction << /S /JavaScript /JS (app.alert\\(1\\)) >> >> endobj"),
    AttachmentRefusal::Active
)]
#[case::spelt_script_pdf(FileKind::Pdf, pdf(b"2 0 obj << /S /J#61va#53cript >> endobj"), AttachmentRefusal::Active)]
#[case::launch_pdf(FileKind::Pdf, pdf(b"<</S/Launch/F(cmd.exe)>>"), AttachmentRefusal::Active)]
#[case::file_in_pdf(FileKind::Pdf, pdf(b"<< /Names << /EmbeddedFiles 3 0 R >> >>"), AttachmentRefusal::Embedded)]
#[case::packed_script_pdf(FileKind::Pdf, object_stream("/Filter /FlateDecode", &deflated(b"3 0 << /S /JavaScript /JS 4 0 R >>")), AttachmentRefusal::Active)]
#[case::packed_otherwise(
    FileKind::Pdf,
    object_stream("/Filter [/ASCIIHexDecode /FlateDecode]", b"00>"),
    AttachmentRefusal::NotInspectable
)]
#[case::filter_by_reference(FileKind::Pdf, object_stream("/Filter 9 0 R", &deflated(b"x")), AttachmentRefusal::NotInspectable)]
#[case::decoy_in_the_dictionary(FileKind::Pdf, object_stream("/X (stream) /Filter /FlateDecode", &deflated(b"x")), AttachmentRefusal::NotInspectable)]
#[case::object_stream_bomb(FileKind::Pdf, object_stream("/Filter /FlateDecode", &deflated(&vec![b' '; 65 * 1024 * 1024])), AttachmentRefusal::Bomb)]
#[case::pdf_with_archive_behind(FileKind::Pdf, [pdf(b""), archive(&[("a", b"b")])].concat(), AttachmentRefusal::Mismatch)]
#[case::text_as_docx(FileKind::Docx, b"hello".to_vec(), AttachmentRefusal::Mismatch)]
#[case::archive_as_docx(FileKind::Docx, archive(&[("a.txt", b"hello")]), AttachmentRefusal::Mismatch)]
#[case::sheet_as_docx(FileKind::Docx, xlsx(&[]), AttachmentRefusal::Mismatch)]
#[case::macro_docx(FileKind::Docx, docx(&[("word/vbaProject.bin", b"x")]), AttachmentRefusal::Macros)]
#[case::macro_types(FileKind::Xlsx, office("application/vnd.ms-excel.sheet.macroEnabled.main+xml", &[]), AttachmentRefusal::Macros)]
#[case::excel_4_macros(FileKind::Xlsx, xlsx(&[("xl/macrosheets/sheet1.xml", b"x")]), AttachmentRefusal::Macros)]
#[case::active_x(FileKind::Docx, docx(&[("word/activeX/activeX1.xml", b"x")]), AttachmentRefusal::Active)]
#[case::remote_template(FileKind::Docx, docx(&[("word/_rels/settings.xml.rels", b"<Relationships><Relationship Type='x/attachedTemplate' Target='http://e.test/t.dotm' TargetMode='External'/></Relationships>")]), AttachmentRefusal::Active)]
#[case::spelt_relationship(FileKind::Docx, docx(&[("word/_rels/a.rels", b"<Relationship TargetMode=\"&#69;xternal\"/>")]), AttachmentRefusal::NotInspectable)]
#[case::ole_object(FileKind::Docx, docx(&[("word/embeddings/oleObject1.bin", &compound(&[("/a", b"b")]))]), AttachmentRefusal::Embedded)]
#[case::macros_in_an_embedded_document(FileKind::Docx, docx(&[("word/embeddings/a.xlsx", &xlsx(&[("xl/vbaProject.bin", b"x")]))]), AttachmentRefusal::Macros)]
#[case::nested_too_deep(FileKind::Docx, docx(&[("a.zip", &docx(&[("b.zip", &docx(&[]))]))]), AttachmentRefusal::Bomb)]
#[case::bomb(FileKind::Xlsx, xlsx(&[("xl/sheet.xml", &vec![b'0'; 20 * 1024 * 1024])]), AttachmentRefusal::Bomb)]
#[case::encrypted_docx(FileKind::Docx, compound(&[("/EncryptedPackage", b"x"), ("/EncryptionInfo", b"x")]), AttachmentRefusal::Encrypted)]
#[case::prefixed_archive(FileKind::Docx, [b"PK\x03\x04junk".as_slice(), &docx(&[])].concat(), AttachmentRefusal::Damaged)]
#[case::archive_with_a_tail(FileKind::Docx, [docx(&[]), b"tail".to_vec()].concat(), AttachmentRefusal::Damaged)]
#[case::cut_archive(FileKind::Docx, docx(&[])[..100].to_vec(), AttachmentRefusal::Damaged)]
#[case::docx_as_xls(FileKind::Xls, docx(&[]), AttachmentRefusal::Mismatch)]
#[case::compound_without_workbook(FileKind::Xls, compound(&[("/WordDocument", b"x")]), AttachmentRefusal::Mismatch)]
#[case::vba_xls(FileKind::Xls, xls(&[], &[("/_VBA_PROJECT_CUR/VBA/dir", b"x")]), AttachmentRefusal::Macros)]
#[case::obproj_xls(FileKind::Xls, xls(&[record(0x00d3, &[])], &[]), AttachmentRefusal::Macros)]
#[case::macro_sheet_xls(FileKind::Xls, xls(&[sheet(1)], &[]), AttachmentRefusal::Macros)]
#[case::password_xls(FileKind::Xls, xls(&[record(0x002f, &[0, 0])], &[]), AttachmentRefusal::Encrypted)]
#[case::packager_xls(FileKind::Xls, xls(&[], &[("/MBD1/\u{1}Ole10Native", b"x")]), AttachmentRefusal::Embedded)]
#[case::workbook_of_nothing(FileKind::Xls, compound(&[("/Workbook", b"")]), AttachmentRefusal::Damaged)]
#[case::cut_xls(FileKind::Xls, xls(&[], &[])[..600].to_vec(), AttachmentRefusal::Damaged)]
#[case::png_as_jpeg(FileKind::Jpeg, png(1, 1, b""), AttachmentRefusal::Mismatch)]
#[case::png_with_a_tail(FileKind::Png, png(1, 1, b"PK\x03\x04"), AttachmentRefusal::Damaged)]
#[case::huge_png(FileKind::Png, png(65_000, 65_000, b""), AttachmentRefusal::TooManyPixels)]
#[case::flat_png(FileKind::Png, png(0, 5, b""), AttachmentRefusal::Damaged)]
#[case::huge_jpeg(FileKind::Jpeg, jpeg(19_000, 19_000, b""), AttachmentRefusal::TooManyPixels)]
#[case::jpeg_with_archive_behind(FileKind::Jpeg, jpeg(1, 1, &archive(&[("a", b"b")])), AttachmentRefusal::Mismatch)]
#[case::jpeg_without_end(FileKind::Jpeg, jpeg(1, 1, b"")[..28].to_vec(), AttachmentRefusal::Damaged)]
#[case::html_as_txt(FileKind::Txt, b"\n <HTML><script>".to_vec(), AttachmentRefusal::Mismatch)]
#[case::program_as_csv(FileKind::Csv, b"MZ\x90\0\x03".to_vec(), AttachmentRefusal::Mismatch)]
#[case::utf16(FileKind::Txt, b"\xff\xfeh\0i\0".to_vec(), AttachmentRefusal::Mismatch)]
#[case::escape_codes(FileKind::Txt, b"\x1b]0;x\x07".to_vec(), AttachmentRefusal::Mismatch)]
fn a_file_that_would_hurt_is_refused_with_its_reason(
    #[case] kind: FileKind,
    #[case] content: Vec<u8>,
    #[case] expected: AttachmentRefusal,
) {
    assert_eq!(media_type(kind, &content), Err(expected));
}

#[rstest]
#[case("certificate.pdf", Ok(FileKind::Pdf))]
#[case("Übersicht 2026 (final).XLSX", Ok(FileKind::Xlsx))]
#[case("report.v1.2.pdf", Ok(FileKind::Pdf))]
#[case("invoice-acme.com.pdf", Ok(FileKind::Pdf))]
#[case("写真.jpeg", Ok(FileKind::Jpeg))]
#[case("", Err("empty"))]
#[case("noextension", Err("extension_not_allowed"))]
#[case("x.pdf.exe", Err("extension_not_allowed"))]
#[case("x.docm", Err("extension_not_allowed"))]
#[case("x.gif", Err("extension_not_allowed"))]
#[case("x.webp", Err("extension_not_allowed"))]
#[case("x.exe.pdf", Err("double_extension"))]
#[case("../x.pdf", Err("bad_character"))]
#[case("a\\x.pdf", Err("bad_character"))]
#[case("a\r\nX: y.pdf", Err("bad_character"))]
#[case("x.exe:y.pdf", Err("bad_character"))]
#[case("x\"; filename=\"y.pdf", Err("bad_character"))]
#[case("invoice\u{202e}fdp.txt", Err("invisible_character"))]
#[case("a\u{200b}.pdf", Err("invisible_character"))]
#[case("a\u{ffa0}.pdf", Err("invisible_character"))]
#[case("a\u{e0041}.pdf", Err("invisible_character"))]
#[case("CON.pdf", Err("reserved_name"))]
#[case("com1.v2.txt", Err("reserved_name"))]
#[case(".pdf", Err("bad_name"))]
#[case(".hidden.pdf", Err("bad_name"))]
#[case("a .pdf", Err("bad_name"))]
#[case("u\u{308}.pdf", Err("bad_name"))]
fn a_file_name_is_plain(#[case] name: &str, #[case] expected: Result<FileKind, &str>) {
    assert_eq!(name::check(name).map_err(|(code, _)| code), expected);
}

#[test]
fn a_file_name_has_a_longest_length() {
    assert!(name::check(&format!("{}.pdf", "a".repeat(196))).is_ok());
    for stem in ["a".repeat(197), "é".repeat(130)] {
        assert_eq!(name::check(&format!("{stem}.pdf")).map_err(|(code, _)| code), Err("too_long"));
    }
}

#[rstest]
#[case("SGVsbG8=", true)]
#[case("SGVsbG8", false)]
#[case("SGVs\r\nbG8=", false)]
#[case("SGVsbG9=", false)]
#[case("data:text/plain;base64,SGVsbG8=", false)]
#[case("SGVs-_8=", false)]
fn base64_has_one_form(#[case] base64: &str, #[case] good: bool) {
    assert_eq!(examine::job(FileKind::Txt, base64).is_some(), good);
}

fn upload(declared: Option<&str>, content: &[u8]) -> Result<Vec<Upload>, ApiError> {
    let body = NewAttachment {
        filename: Some("a.csv".into()),
        content_base64: Some(STANDARD.encode(content)),
        content_type: declared.map(str::to_owned),
        content_id: None,
    };
    let mut faults = Faults::default();
    let uploads = uploads(&mut faults, vec![body])?;
    faults.finish().map(|()| uploads)
}

#[tokio::test]
async fn what_is_sent_decodes_to_what_was_given() {
    let content = "Hello, ".repeat(100);
    let attachments = read_all(&Reader::in_process(), "shop", upload(None, content.as_bytes()).unwrap()).await.unwrap();
    let sent = String::from_utf8(attachments.into_iter().next().unwrap().encoded).unwrap();
    assert!(sent.ends_with("\r\n") && sent.lines().all(|line| line.len() <= LINE_CHARS));
    assert_eq!(STANDARD.decode(sent.replace("\r\n", "")).unwrap(), content.as_bytes());
}

#[rstest]
#[case::plain("text/csv", "a;b\n".as_bytes(), true)]
#[case::by_another_name("application/csv; charset=utf-8", "a;b\n".as_bytes(), true)]
#[case::header("text/csv; header=present; charset=\"UTF-8\"", "a;é\n".as_bytes(), true)]
#[case::its_name("text/csv; name=\"a.csv\"", "a;b\n".as_bytes(), true)]
#[case::ascii("text/csv; charset=us-ascii", "a;b\n".as_bytes(), true)]
#[case::old("text/csv; charset=windows-1252", b"a;\xe9\n", true)]
#[case::not_ascii("text/csv; charset=us-ascii", "a;é\n".as_bytes(), false)]
#[case::another_charset("text/csv; charset=utf-16", "a;é\n".as_bytes(), false)]
#[case::not_utf8("text/csv; charset=utf-8", b"a;\xe9\n", false)]
#[case::another_name("text/csv; name=\"a.exe\"", "a;b\n".as_bytes(), false)]
#[case::twice("text/csv; charset=utf-8; charset=utf-16", "a;b\n".as_bytes(), false)]
#[case::anything("text/csv; boundary=x", "a;b\n".as_bytes(), false)]
#[case::another_type("application/pdf", "a;b\n".as_bytes(), false)]
#[tokio::test]
async fn a_declared_type_is_true_of_the_file_with_its_parameters(
    #[case] declared: &str,
    #[case] content: &[u8],
    #[case] good: bool,
) {
    let answer = match upload(Some(declared), content) {
        Ok(uploads) => read_all(&Reader::in_process(), "shop", uploads).await.map(drop),
        Err(error) => Err(error),
    };
    let fault = answer.err().map(|error| (error.fields[0].path.clone(), error.fields[0].code.to_string()));
    let expected = (!good).then(|| ("attachments[0].content_type".to_owned(), "content_type_mismatch".to_owned()));
    assert_eq!(fault, expected);
}

#[tokio::test(start_paused = true)]
async fn what_is_looked_into_in_an_hour_is_limited_for_each_tenant() {
    let tenant = Uuid::from_u128(u128::from(rand::random::<u64>()));
    for _ in 0..INSPECTIONS_PER_HOUR {
        // What comes again is counted once.
        drop(admit(tenant).await.unwrap());
        admit(tenant).await.unwrap().keep();
    }
    tokio::time::advance(HOUR / 6).await;
    let error = admit(tenant).await.unwrap_err();
    let code = (error.status.as_u16(), error.code.as_ref());
    assert_eq!(code, (429, "message_rate_exceeded"));
    assert_eq!(error.retry_after, Some(3_001), "the rest of the hour");
    assert!(admit(Uuid::nil()).await.is_ok());
}

#[rstest]
#[case("", 0)]
#[case("QQ==", 1)]
#[case("QUI=", 2)]
#[case("QUJD", 3)]
fn the_size_is_known_before_decoding(#[case] base64: &str, #[case] bytes: usize) {
    assert_eq!(decoded_bytes(base64), bytes);
}

/// A file of so many bytes, give or take its ends.
fn around(start: &[u8], filling: &[u8], length: usize, end: &[u8]) -> Vec<u8> {
    [start, &filling.repeat(length / filling.len().max(1)), end].concat()
}

#[test]
fn the_cost_of_a_pdf_grows_with_its_length() {
    fn with(filling: &'static [u8], n: usize) -> Vec<u8> {
        around(b"%PDF-1.7\n1 0 obj <<", filling, n, b"\n%%EOF\n")
    }
    let shapes: [Shape; 11] = [
        ("first", |n| with(b"/First ", n)),
        ("first and stream", |n| with(b"/First /First stream\n", n)),
        ("objects that stay open", |n| with(b"obj<<", n)),
        ("texts that stay open", |n| with(b"obj<<(", n)),
        ("comments", |n| with(b"obj%", n)),
        ("names", |n| with(b"/", n)),
        ("half spelt names", |n| with(b"/#4", n)),
        ("spelt names", |n| with(b"#46", n)),
        ("object streams", |n| with(b"1 0 obj<</Type/ObjStm/Filter/FlateDecode>>stream\nx\nendstream endobj ", n)),
        ("unpacks", |n| object_stream("/Filter /FlateDecode", &deflated(&b"/Page ".repeat(n)))),
        ("unpacks blanks", |n| object_stream("/Filter /FlateDecode", &deflated(&vec![b' '; 50 * n]))),
    ];
    check_growth(&shapes, 30_000, 200_000, |content| cost(FileKind::Pdf, content));
}

#[test]
fn the_cost_of_a_document_grows_with_its_length() {
    let shapes: [Shape; 6] = [
        ("entries", |n| many_entries(n / 100)),
        ("relationships", |n| {
            rels(&around(b"<Relationships>", b"<Relationship Type='x' TargetMode='External'/>", n, b"</Relationships>"))
        }),
        ("open tags", |n| rels(&b"<".repeat(n))),
        ("open comments", |n| rels(&b"<!--".repeat(n / 4))),
        ("a sheet", |n| xlsx(&[("xl/sheet.xml", &vec![b'0'; 20 * n])])),
        ("a document inside", |n| {
            docx(&[("a.xlsx", &xlsx(&[("b.xml", &(0..n).flat_map(|at| at.to_le_bytes()).collect::<Vec<u8>>())]))])
        }),
    ];
    check_growth(&shapes, 30_000, 300_000, |content| cost(FileKind::Docx, content));
}

#[test]
fn the_cost_of_the_other_kinds_grows_with_their_length() {
    let xls_shapes: [Shape; 2] = [
        ("records", |n| xls(&(0..n / 100).map(|_| record(0x0042, &[0; 90])).collect::<Vec<_>>(), &[])),
        ("a table named again and again", |n| [listed_table(), vec![0; n.next_multiple_of(4_096)]].concat()),
    ];
    check_growth(&xls_shapes, 100_000, 200_000, |content| cost(FileKind::Xls, content));
    let images: [Shape; 2] = [
        ("a trailer", |n| jpeg(1, 1, &b"PK\x03".repeat(n / 3))),
        ("segments", |n| around(b"\xff\xd8", b"\xff\xe0\0\x02", n, b"")),
    ];
    check_growth(&images, 30_000, 1_000, |content| cost(FileKind::Jpeg, content));
    let texts: [Shape; 2] = [("letters", |n| vec![b'a'; n]), ("blanks", |n| vec![b' '; n])];
    check_growth(&texts, 30_000, 1_000, |content| cost(FileKind::Txt, content));
}

#[test]
fn a_bomb_is_not_held() {
    let bomb = object_stream("/Filter /FlateDecode", &deflated(&vec![0; 67_000_000]));
    assert!(cost(FileKind::Pdf, &bomb).held_bytes < 256 * 1024);
    let inner = [archive::MAGIC, &vec![0; 75 * 1024 * 1024]].concat();
    assert!(cost(FileKind::Docx, &docx(&[("a.xlsx", &inner)])).held_bytes < 1024 * 1024);
}

#[test]
fn fuzz_pdf() {
    const TOKENS: &[&[u8]] = &[
        b"%PDF-1.7\n",
        b"%%EOF",
        b"1 0 obj",
        b"endobj",
        b"<<",
        b">>",
        b"stream\n",
        b"endstream",
        b"/ObjStm",
        b"/First",
        b"/Filter",
        b"/FlateDecode",
        b"/Fl",
        b"/JavaScript",
        b"/#4a",
        b"#",
        b"(",
        b")",
        b"\\",
        b"%",
        b"<",
        b">",
        b"[",
        b"]",
        b"/",
        b"\n",
        b" ",
        b"\x78\x9c",
    ];
    fuzz(TOKENS, |input| {
        cost(FileKind::Pdf, &[b"%PDF-1.7\n", input, b"\n%%EOF"].concat());
    });
}

#[test]
fn fuzz_document() {
    const TOKENS: &[&[u8]] = &[
        b"<Relationship ",
        b"<r:Relationship\t",
        b"TargetMode=",
        b"\"External\"",
        b"'External'",
        b"Type=",
        b"'x/attachedTemplate'",
        b"/>",
        b">",
        b"<",
        b"</a>",
        b"<!--",
        b"-->",
        b"<![CDATA[",
        b"]]>",
        b"<?xml ",
        b"encoding=",
        b"?>",
        b"<!DOCTYPE",
        b"&#",
        b"&gt;",
        b"\0",
        b"\xff",
        b" ",
        b"PK\x03\x04",
        b"PK\x01\x02",
        b"PK\x05\x06",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\x08\0",
        b"a.xml",
    ];
    fuzz(TOKENS, |input| {
        cost(FileKind::Docx, &rels(input));
        cost(FileKind::Docx, &[archive::MAGIC, input].concat());
    });
}

#[test]
fn fuzz_workbook() {
    const TOKENS: &[&[u8]] = &[
        b"\x09\x08\x04\0",
        b"\x0a\0\0\0",
        b"\x2f\0\x02\0",
        b"\x85\0\x08\0",
        b"\xd3\0\0\0",
        b"\xff\xff",
        b"\0\0\0\0",
        b"\xfe\xff\xff\xff",
        b"\xfd\xff\xff\xff",
    ];
    let whole = xls(&[sheet(0)], &[]);
    fuzz(TOKENS, |input| {
        cost(FileKind::Xls, &compound(&[("/Workbook", input)]));
        // Over the tables of a good one.
        let mut content = whole.clone();
        let at = input.len() * 37 % content.len();
        content.splice(at..content.len().min(at + input.len()), input.iter().copied());
        cost(FileKind::Xls, &content);
    });
}

#[test]
fn fuzz_image() {
    const TOKENS: &[&[u8]] = &[
        b"\x89PNG\r\n\x1a\n",
        b"\0\0\0\x0dIHDR",
        b"\0\0\0\x01IDAT",
        b"IEND",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\xff\xd8",
        b"\xff\xc0",
        b"\xff\xda",
        b"\xff\xd9",
        b"\xff",
        b"\0\x02",
        b"PK\x03\x04",
    ];
    fuzz(TOKENS, |input| {
        cost(FileKind::Png, &[b"\x89PNG\r\n\x1a\n", input].concat());
        cost(FileKind::Jpeg, &[b"\xff\xd8", input].concat());
    });
}

mod any_bytes {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_mangled_file_never_panics(
            which in 0..5_usize, at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(),
        ) {
            let (kind, mut content) = match which {
                0 => (FileKind::Docx, docx(&[])),
                1 => (FileKind::Xls, xls(&[sheet(0)], &[])),
                2 => (FileKind::Pdf, object_stream("/Filter /FlateDecode", &deflated(b"3 0 << >>"))),
                3 => (FileKind::Png, png(3, 3, b"")),
                _ => (FileKind::Jpeg, jpeg(3, 3, b"")),
            };
            let place = at.index(content.len());
            content[place] = byte;
            let _ = media_type(kind, &content);
            content.truncate(cut.index(content.len()));
            let _ = media_type(kind, &content);
        }
    }
}
